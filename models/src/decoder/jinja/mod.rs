//! Jinja as transformers sets it up for chat templates: minijinja with Python's values, methods and operators.

mod budget;
mod dict;
mod expressions;
mod filters;
#[cfg(test)]
mod hostile;
mod markup;
mod methods;
mod numbers;
mod operations;
mod operators;
mod python;
mod refusal;
mod rewrite;
mod size;
mod slice;
mod stack;
mod tokens;
mod weight;

use std::collections::BTreeSet;

use chrono::NaiveDateTime;
use minijinja::{AutoEscape, Environment, Error, Value};

pub(super) use self::dict::of_json;
pub(super) use self::filters::as_json;
use self::operations::Operations;
use self::rewrite::{rewrite, Rewritten};

/// A template, and the environment that it is rendered in.
pub(super) struct Jinja {
    environment: Environment<'static>,
    names: BTreeSet<String>,
    /// Whether what it nests needs a stack of its own.
    is_deep: bool,
}

/// What the environment calls its only template.
const NAME: &str = "chat";

/// Steps of a template at most: it ends, whatever it says.
const STEPS: usize = 2_000_000;

/// Bytes of the texts between tags that all steps write at most.
const PLAIN_BYTES: usize = 256 << 20;

/// Brackets within brackets of templates that any stack is large enough for: tags stand within at most 150 others.
const SHALLOW: usize = 8;

/// Bytes of a template. The largest that models have are of 50 KB.
const MOST_SOURCE: usize = 256 << 10;

impl Jinja {
    /// Parses a template. `now` is the clock of `strftime_now`.
    pub fn parse(source: &str, now: fn() -> NaiveDateTime) -> Result<Self, Error> {
        if source.len() > MOST_SOURCE {
            return Err(refusal::refused("a template has no more than 256 KiB"));
        }
        stack::deep(source.len(), || Self::read(source, now))
    }

    fn read(source: &str, now: fn() -> NaiveDateTime) -> Result<Self, Error> {
        let Rewritten { source, names, longest, brackets } = rewrite(source)?;
        // What calls itself, and values that blocks within blocks make deeper.
        let calls = ["macro", "call", "recursive", "block", "self", "super"];
        let is_deep = brackets > SHALLOW || calls.iter().any(|name| names.contains(name));
        let names = names.into_iter().map(str::to_owned).collect();
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(STEPS.min(PLAIN_BYTES / longest) as u64));
        environment.set_unknown_method_callback(methods::call);
        // There is no other template, and a template within itself would hold what no one looks at.
        environment.set_path_join_callback(|_, _| "none".into());
        environment.set_formatter(|out, state, value| match value.is_undefined() {
            true => Ok(()),
            // A block of the template's asks for it.
            false if state.auto_escape() != AutoEscape::None => Err(refusal::refused("`autoescape` is not supported")),
            false => {
                let text = python::text(value)?;
                budget::made_text(text.len())?;
                out.write_str(&text).map_err(Error::from)
            }
        });
        filters::add(&mut Operations::new(&mut environment), now);
        environment.add_template_owned(NAME, source)?;
        Ok(Self { environment, names, is_deep })
    }

    /// Does the template name this?
    pub fn reads(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The text that it gives with these names.
    pub fn render(&self, names: Value) -> Result<String, Error> {
        self.render_within(names, budget::MOST)
    }

    fn render_within(&self, names: Value, most: u64) -> Result<String, Error> {
        let job = || {
            budget::start(most);
            self.environment.get_template(NAME)?.render(names)
        };
        match self.is_deep {
            true => stack::deep(0, job),
            false => stack::shallow(job),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Reference {
        names: HashMap<String, Value>,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        names: String,
        template: String,
        text: Option<String>,
    }

    /// The clock of `reference/templates.py`.
    fn now() -> NaiveDateTime {
        let day = chrono::NaiveDate::from_ymd_opt(2024, 7, 6).expect("a day");
        day.and_hms_opt(5, 4, 3).expect("a time")
    }

    #[test]
    fn idioms_of_templates_give_the_text_that_jinja2_gives() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/templates.json");
        let json = std::fs::read_to_string(path).expect("the file is there");
        let reference: Reference = serde_json::from_str(&json).expect("JSON");
        assert!(reference.cases.len() > 200);
        let wrong: Vec<String> = reference
            .cases
            .iter()
            .filter_map(|case| {
                let names = of_json(&reference.names[&case.names]);
                let got = Jinja::parse(&case.template, now).and_then(|jinja| jinja.render(names));
                let is_right = got.as_ref().ok() == case.text.as_ref();
                (!is_right).then(|| format!("{:?}: {got:?}, not {:?}", case.template, case.text))
            })
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn what_differs_from_jinja2_is_refused() {
        for source in
            ["{% autoescape true %}{{ '<' }}{% endautoescape %}", "{{ {'a': 1} | pprint }}", "{{ '%r' % 'a' }}"]
        {
            assert!(Jinja::parse(source, now).and_then(|jinja| jinja.render(Value::UNDEFINED)).is_err(), "{source}");
        }
    }

    #[test]
    fn a_template_that_would_take_for_ever_is_refused() {
        let loops = "{% for a in range(90000) %}".repeat(4) + "x" + &"{% endfor %}".repeat(4);
        let jinja = Jinja::parse(&loops, now).expect("it can be parsed");
        assert!(jinja.render(Value::UNDEFINED).is_err());
    }

    #[test]
    fn what_grows_without_bound_is_refused() {
        let doubled = |by: &str| {
            let start = if by.contains('[') { "[1]" } else { "'aaaaaaaa'" };
            format!("{{% set n = namespace(x={start}) %}}{{% for i in range(60) %}}{{% set n.x = {} %}}{{% endfor %}}{{{{ n.x }}}}", by.replace("[]", ""))
        };
        let nested = "{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}";
        let long = "{% set x = 'a' * 100000 %}";
        for source in [
            doubled("n.x + n.x"),
            doubled("n.x ~ n.x"),
            doubled("[]n.x + n.x"),
            doubled("n.x | replace('a', 'aa')"),
            doubled("n.x.replace('a', 'aa')"),
            format!("{nested}{{{{ n.x }}}}"),
            format!("{nested}{{{{ n.x | tojson }}}}"),
            format!("{long}{{{{ x | join(x) }}}}"),
            format!("{long}{{{{ x | replace('', x) }}}}"),
            "{{ [1] | batch(2000000000, 1) | list }}".into(),
            "{{ [1] | slice(2000000000) | list }}".into(),
            "{{ lipsum(2000000000) }}".into(),
            "{{ lipsum(n=1, max=2000000000) }}".into(),
            "{{ '%2000000000d' % 1 }}".into(),
            "{{ '%.2000000000f' % 1 }}".into(),
            "{{ '%2000000000d' | format(1) }}".into(),
            "{{ '%*d' % (2000000000, 1) }}".into(),
            "{{ '{:>2000000000}'.format(1) }}".into(),
            "{{ ('\\t' * 100000).expandtabs(1000000) }}".into(),
        ] {
            let said = Jinja::parse(&source, now).and_then(|jinja| jinja.render(Value::UNDEFINED));
            assert!(said.is_err(), "{source}: {:?}", said.map(|text| text.len()));
        }
    }

    #[test]
    fn templates_that_do_not_end_are_refused_and_none_panics() {
        for source in [
            "{{",
            "{%",
            "{#",
            "{{ 'a",
            "{% raw %}",
            "{{ ( }}",
            "{{ a ~ }}",
            "{{ % 2 }}",
            "{% generation %}",
            "{{ )~( }}",
            "{",
            "{{ ~ }}",
        ] {
            for padded in [source.to_owned(), format!("é{source}"), format!("{source}é")] {
                if source != "{" {
                    assert!(Jinja::parse(&padded, now).is_err(), "{padded}");
                }
            }
        }
        assert_eq!(
            Jinja::parse("{ }", now).and_then(|jinja| jinja.render(Value::UNDEFINED)).ok().as_deref(),
            Some("{ }")
        );
    }
}
