//! Arguments that are no JSON as a grammar.

use opara_models::decoder::CallSyntax;
use serde_json::{json, Map, Value};

use super::between::Between;
use super::rules::{between_slashes, literal, Rules, ANY};
use super::{Failure, Result};
use crate::generate::common;

/// Keywords that say nothing of a value.
const SAID: [&str; 9] =
    ["type", "title", "description", "default", "examples", "deprecated", "nullable", "readOnly", "writeOnly"];
/// Schemas within schemas that are followed.
const DEEPEST: usize = 16;

/// A schema that a value shall fit.
#[derive(Clone, Copy)]
struct Schema<'a> {
    of: &'a Value,
    /// References are from here on.
    root: &'a Value,
    depth: usize,
}

/// The values of a schema.
enum Kinds<'a> {
    /// Each value of one of these schemas.
    Any(Vec<Schema<'a>>),
    /// These values.
    Values(Vec<&'a Value>),
    /// Each value of one of these types; any value where no type is given.
    Types(Vec<&'a str>),
}

impl<'a> Schema<'a> {
    fn new(of: &'a Value, root: &'a Value) -> Self {
        Self { of, root, depth: DEEPEST }
    }

    fn within(self, of: &'a Value) -> Result<Self> {
        let depth = self.depth.checked_sub(1);
        let depth = depth.ok_or_else(|| unfollowed("more than 16 schemas within each other", self.of))?;
        Ok(Self { of, depth, ..self })
    }

    /// The schema that it refers to, if it does.
    fn resolved(self) -> Result<Self> {
        let Some(name) = self.of["$ref"].as_str() else { return Ok(self) };
        let found = name.strip_prefix('#').and_then(|path| self.root.pointer(path));
        self.within(found.ok_or_else(|| unfollowed(name, self.of))?)?.resolved()
    }

    fn kinds(self) -> Result<Kinds<'a>> {
        if *self.of == Value::Bool(false) {
            return Err(unfollowed("false", self.of));
        }
        if let Some(values) = self.of["enum"].as_array() {
            return Ok(Kinds::Values(values.iter().collect()));
        }
        if let Some(value) = self.of.get("const") {
            return Ok(Kinds::Values(vec![value]));
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            let Some(several) = self.of[name].as_array() else { continue };
            if name == "allOf" && several.len() != 1 {
                return Err(unfollowed(name, self.of));
            }
            let several = several.iter().map(|schema| self.within(schema));
            return Ok(Kinds::Any(several.collect::<Result<_>>()?));
        }
        Ok(Kinds::Types(match &self.of["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
            _ if self.of.get("properties").is_some() => vec!["object"],
            _ => Vec::new(),
        }))
    }

    /// The schema as one of JSON of one type.
    fn json(self, rules: &mut Rules, kind: &str) -> Result<String> {
        let mut of = self.of.as_object().cloned().unwrap_or_default();
        of.insert("type".into(), json!(kind));
        rules.json(&Value::Object(of), self.root)
    }

    /// Refuses keywords but these.
    fn has_only(self, known: &[&str]) -> Result<()> {
        let fields = self.of.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        let is_known = |name: &str| SAID.contains(&name) || known.contains(&name) || name.starts_with(['$', 'x']);
        let unknown = fields.into_iter().find(|name| !is_known(name) && *name != "definitions");
        unknown.map_or(Ok(()), |name| Err(unfollowed(name, self.of)))
    }

    /// The texts that fit, as a regular expression.
    fn texts(self) -> Result<String> {
        let known = ["pattern", "minLength", "maxLength"];
        self.has_only(&known)?;
        let [pattern, least, most] = known.map(|name| self.of.get(name));
        match (pattern.and_then(Value::as_str), least.or(most)) {
            (None, None) => Ok(ANY.into()),
            (None, Some(_)) => {
                let number = |of: Option<&Value>| of.map_or(String::new(), Value::to_string);
                let least = if least.is_some() { number(least) } else { "0".into() };
                Ok(format!("(.|\\n){{{least},{}}}", number(most)))
            }
            (Some(pattern), None) => {
                // It may stand anywhere in a text.
                let (start, pattern) = pattern.strip_prefix('^').map_or((ANY, pattern), |rest| ("", rest));
                let is_end = pattern.ends_with('$') && !pattern.ends_with("\\$");
                let (pattern, end) = if is_end { (&pattern[..pattern.len() - 1], "") } else { (pattern, ANY) };
                Ok(format!("{start}({}){end}", between_slashes(pattern)))
            }
            (Some(_), Some(_)) => Err(unfollowed("pattern` beside `minLength` or `maxLength", self.of)),
        }
    }
}

fn unfollowed(what: &str, schema: &Value) -> Failure {
    let schema: String = schema.to_string().chars().take(120).collect();
    Failure::invalid(format!(
        "`tools`: the model's calls are not JSON, and cannot be made to follow `{what}` of {schema}"
    ))
}

/// A value, and the mark behind it.
pub(super) struct Marks {
    /// The spaces before the mark.
    spaces: String,
    /// The mark behind all values.
    end: String,
}

/// The marks around the values of calls of this form.
///
/// # Errors
/// Nothing ends a value.
pub(super) fn value_between_marks(syntax: &CallSyntax, next: &str) -> Result<Marks> {
    let end = common(next, &syntax.close);
    let spaces = next[..next.len() - next.trim_start().len()].to_owned();
    match end.is_empty() {
        true => Err(Failure::invalid("`tools`: no mark ends an argument of the model's calls")),
        false => Ok(Marks { spaces, end }),
    }
}

impl Marks {
    /// The rest of a mark behind the end of a value.
    pub fn rest<'a>(&self, mark: &'a str) -> Option<&'a str> {
        mark.trim_start().strip_prefix(self.end.as_str())
    }

    /// A value of a schema within `root`, and the mark behind it.
    ///
    /// # Errors
    /// A schema that cannot be followed.
    pub fn value(&self, rules: &mut Rules, schema: &Value, root: &Value) -> Result<String> {
        self.of(rules, Schema::new(schema, root))
    }

    fn of(&self, rules: &mut Rules, schema: Schema) -> Result<String> {
        let schema = schema.resolved()?;
        let end = rules.mark(&format!("{}{}", self.spaces, self.end));
        let several = match schema.kinds()? {
            Kinds::Any(several) => {
                several.into_iter().map(|schema| self.of(rules, schema)).collect::<Result<Vec<_>>>()?
            }
            Kinds::Values(values) => {
                let written = |value: &Value| match value {
                    Value::String(text) if text.contains(&self.end) => Err(unfollowed(text, schema.of)),
                    Value::String(text) => Ok(format!("{} {end}", literal(text))),
                    other => Ok(format!("{} {end}", literal(&other.to_string()))),
                };
                values.into_iter().map(written).collect::<Result<_>>()?
            }
            Kinds::Types(kinds) if kinds.is_empty() || kinds.contains(&"string") => {
                // A text may be any value.
                vec![rules.until(&schema.texts()?, &format!("{}{}", self.spaces, self.end))?]
            }
            Kinds::Types(kinds) => {
                let json = |kind: &&str| Ok(format!("{} {end}", schema.json(rules, kind)?));
                kinds.iter().map(json).collect::<Result<_>>()?
            }
        };
        Ok(rules.add(&several.join(" | ")))
    }
}

/// Arguments behind their brace, with their end: names without quotes, and texts between two marks.
///
/// # Errors
/// A schema that cannot be followed.
pub(super) fn quoted(rules: &mut Rules, parameters: &Value, quote: &str) -> Result<String> {
    let mut quotes = Quotes { quote, known: Vec::new(), any: None };
    quotes.fields(rules, Schema::new(parameters, parameters))
}

/// Values whose texts stand between two marks.
struct Quotes<'a> {
    quote: &'a str,
    /// Rules of schemas, which may be within themselves.
    known: Vec<(*const Value, String)>,
    /// The rule of any value.
    any: Option<String>,
}

impl Quotes<'_> {
    /// The fields of an object behind its brace, with its end.
    fn fields(&mut self, rules: &mut Rules, schema: Schema) -> Result<String> {
        schema.has_only(&["properties", "required", "additionalProperties", "definitions"])?;
        if schema.of.get("properties").is_none() {
            let any = self.any(rules)?;
            let field = rules.add(&format!("/[a-zA-Z0-9_.-]+/ \":\" {any}"));
            return Ok(rules.add(&format!("({field} (\",\" {field})*)? \"}}\"")));
        }
        let between = Between {
            first: String::new(),
            assign: literal(":"),
            next: literal(","),
            none: literal("}"),
            end: literal("}"),
        };
        between.arguments(rules, schema.of, &mut |rules, of| self.of(rules, schema.within(of)?))
    }

    fn of(&mut self, rules: &mut Rules, schema: Schema) -> Result<String> {
        let schema = schema.resolved()?;
        let at: *const Value = schema.of;
        if let Some((_, rule)) = self.known.iter().find(|(known, _)| *known == at) {
            return Ok(rule.clone());
        }
        let rule = rules.name();
        self.known.push((at, rule.clone()));
        let several = match schema.kinds()? {
            Kinds::Any(several) => {
                several.into_iter().map(|schema| self.of(rules, schema)).collect::<Result<Vec<_>>>()?
            }
            Kinds::Values(values) => values.into_iter().map(|value| self.written(rules, value)).collect(),
            Kinds::Types(kinds) if kinds.is_empty() => vec![self.any(rules)?],
            Kinds::Types(kinds) => {
                kinds.into_iter().map(|kind| self.of_type(rules, schema, kind)).collect::<Result<_>>()?
            }
        };
        rules.define(&rule, &several.join(" | "));
        Ok(rule)
    }

    fn of_type(&mut self, rules: &mut Rules, schema: Schema, kind: &str) -> Result<String> {
        match kind {
            "string" => self.text(rules, &schema.texts()?),
            "object" => Ok(format!("\"{{\" {}", self.fields(rules, schema)?)),
            "array" => {
                schema.has_only(&["items", "minItems", "maxItems"])?;
                let item = match schema.of.get("items") {
                    Some(items) => self.of(rules, schema.within(items)?)?,
                    None => self.any(rules)?,
                };
                let number = |name: &str| schema.of[name].as_u64();
                let (least, most) = (number("minItems").unwrap_or(0), number("maxItems"));
                let further = match most {
                    Some(0 | 1) => String::new(),
                    most => {
                        let most = most.map_or(String::new(), |most| (most - 1).to_string());
                        format!("(\",\" {item}){{{},{most}}}", least.saturating_sub(1))
                    }
                };
                let some = format!("{item} {further}");
                Ok(match (least, most) {
                    (_, Some(0)) => "\"[\" \"]\"".into(),
                    (0, _) => format!("\"[\" ({some})? \"]\""),
                    _ => format!("\"[\" {some} \"]\""),
                })
            }
            kind => schema.json(rules, kind),
        }
    }

    /// A value as it is written.
    fn written(&self, rules: &Rules, value: &Value) -> String {
        let several = |open: &str, parts: Vec<String>, close: &str| {
            format!("{} {} {}", literal(open), parts.join(" \",\" "), literal(close))
        };
        match value {
            Value::String(text) => format!("{0} {1} {0}", rules.mark(self.quote), literal(text)),
            Value::Array(values) => several("[", values.iter().map(|value| self.written(rules, value)).collect(), "]"),
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| {
                    format!("{} \":\" {}", literal(name), self.written(rules, value))
                };
                several("{", fields.iter().map(field).collect(), "}")
            }
            other => literal(&other.to_string()),
        }
    }

    fn text(&self, rules: &mut Rules, regex: &str) -> Result<String> {
        Ok(format!("{} {}", rules.mark(self.quote), rules.until(regex, self.quote)?))
    }

    fn any(&mut self, rules: &mut Rules) -> Result<String> {
        if let Some(rule) = &self.any {
            return Ok(rule.clone());
        }
        let rule = rules.name();
        self.any = Some(rule.clone());
        let text = self.text(rules, ANY)?;
        let single = json!({"type": ["number", "boolean", "null"]});
        let single = rules.json(&single, &Value::Object(Map::new()))?;
        let field = rules.add(&format!("/[a-zA-Z0-9_.-]+/ \":\" {rule}"));
        let list = format!("\"[\" ({rule} (\",\" {rule})*)? \"]\"");
        rules.define(&rule, &format!("{text} | {single} | {list} | \"{{\" ({field} (\",\" {field})*)? \"}}\""));
        Ok(rule)
    }
}
