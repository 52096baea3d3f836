//! Bodies of the Open Inference Protocol over HTTP: JSON, and tensors as bytes behind it.

use bytes::Bytes;
use opara_weights::Harmless;
use serde::Serialize;
use serde_json::Value;

use crate::embed::TextOptions;
use crate::model::{Datatype, Failure, Kind, Result, Tensor, TensorSpec, Values};

use super::fields::{of_body, Fields, Unread};
use super::raw;

/// Parameters of a request, an input or an output that change no answer: models of this server have no state, and their tensors one
/// meaning.
pub(super) const HARMLESS: &[&str] =
    &["content_type", "headers", "priority", "sequence_end", "sequence_id", "sequence_start"];

/// An input as it was sent.
struct Input {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    binary_bytes: Option<u64>,
    data: Option<Value>,
}

/// A request.
#[derive(Debug)]
pub(super) struct Request {
    pub id: Option<String>,
    /// In microseconds.
    pub timeout: Option<u64>,
    pub options: TextOptions,
    pub inputs: Vec<Tensor>,
    /// The outputs that are named, and whether each is to be bytes.
    pub outputs: Vec<(String, bool)>,
    /// Whether outputs are bytes where none is named.
    pub is_binary: bool,
}

impl Request {
    /// Reads a body whose first `json_bytes` are JSON, all of them where that is absent. With `allows_unread` fields that are not
    /// supported are ignored.
    pub fn read(mut body: Bytes, json_bytes: Option<usize>, allows_unread: bool) -> Result<Self> {
        let json_bytes = json_bytes.unwrap_or(body.len());
        if json_bytes > body.len() {
            let message = format!("the header announces {json_bytes} bytes of JSON, and the body has {}", body.len());
            return Err(Failure::invalid(message));
        }
        let json = body.split_to(json_bytes);
        let limit = json.len() + body.len();
        let fields = of_body(&json)?;
        let unread = Unread { harmless: Harmless { names: HARMLESS, neutral: &[] }, is_allowed: allows_unread };
        let id = fields.take("id")?;
        let inputs = fields.objects("inputs")?.ok_or_else(|| Failure::invalid("`inputs` is missing"))?;
        let inputs = inputs.into_iter().map(|input| Input::read(input, unread)?.tensor(&mut body, limit));
        let inputs = inputs.collect::<Result<_>>()?;
        if !body.is_empty() {
            return Err(Failure::invalid(format!("the body has {} bytes that belong to no input", body.len())));
        }
        let parameters = fields.object("parameters")?;
        let timeout = parameters.take("timeout")?;
        let is_binary = parameters.take("binary_data_output")?.unwrap_or(false);
        let (prompt, name) = (parameters.take("prompt")?, parameters.take("prompt_name")?);
        let options = TextOptions::of(prompt, name, parameters.take("truncate")?)?;
        unread.check(&parameters)?;
        let outputs = fields.objects("outputs")?.unwrap_or_default();
        let outputs = outputs.into_iter().map(|output| asked(output, is_binary, unread)).collect::<Result<_>>()?;
        Unread { harmless: Harmless::default(), ..unread }.check(&fields)?;
        Ok(Self { id, timeout, options, inputs, outputs, is_binary })
    }
}

/// The name of an output, and whether it is to be bytes.
fn asked(output: Fields, is_binary: bool, unread: Unread) -> Result<(String, bool)> {
    let name = output.need("name")?;
    let parameters = output.object("parameters")?;
    if parameters.take::<u64>("classification")?.unwrap_or(0) > 0 {
        return Err(Failure::new(Kind::Unimplemented, "the classification extension is not offered"));
    }
    refuse_shared_memory(&parameters)?;
    let is_binary = parameters.take("binary_data")?.unwrap_or(is_binary);
    unread.check(&parameters)?;
    Unread { harmless: Harmless::default(), ..unread }.check(&output)?;
    Ok((name, is_binary))
}

fn refuse_shared_memory(parameters: &Fields) -> Result<()> {
    let fields = ["shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"];
    match fields.into_iter().any(|field| parameters.get(field).is_some()) {
        true => Err(Failure::new(Kind::Unimplemented, "shared memory is not offered")),
        false => Ok(()),
    }
}

impl Input {
    fn read(input: Fields, unread: Unread) -> Result<Self> {
        let (name, shape, datatype) = (input.need("name")?, input.need("shape")?, input.need("datatype")?);
        let parameters = input.object("parameters")?;
        refuse_shared_memory(&parameters)?;
        let binary_bytes = parameters.take("binary_data_size")?;
        unread.check(&parameters)?;
        let data = input.take("data")?;
        Unread { harmless: Harmless::default(), ..unread }.check(&input)?;
        Ok(Self { name, shape, datatype, binary_bytes, data })
    }

    /// `binary` holds the tensors that follow the JSON. A tensor has at most `limit` elements: each takes a byte of the
    /// request at least.
    fn tensor(self, binary: &mut Bytes, limit: usize) -> Result<Tensor> {
        let Self { name, shape, datatype, binary_bytes, data } = self;
        let datatype: Datatype = datatype.parse()?;
        let (shape, elements) = crate::model::checked_shape(&name, &shape, limit)?;
        let values = match (binary_bytes, data) {
            (Some(_), Some(_)) => {
                return Err(Failure::invalid(format!("input {name:?} has both data and binary_data_size")))
            }
            (None, None) => return Err(Failure::invalid(format!("input {name:?} has no data"))),
            (Some(size), None) => {
                let size = usize::try_from(size).ok().filter(|&size| size <= binary.len());
                let missing = || Failure::invalid(format!("the body ends before the bytes of input {name:?}"));
                raw::decode(&name, datatype, elements, binary.split_to(size.ok_or_else(missing)?))?
            }
            (None, Some(data)) => of_json(&name, datatype, elements, data)?,
        };
        Ok(Tensor { name, datatype, shape, values })
    }
}

/// Elements of nested lists, in row-major order.
fn of_json(name: &str, datatype: Datatype, elements: usize, data: Value) -> Result<Values> {
    let mut flat = Vec::new();
    flatten(data, &mut flat);
    if flat.len() != elements {
        let message = format!("input {name:?} has {} elements, and its shape says {elements}", flat.len());
        return Err(Failure::invalid(message));
    }
    let wrong = |index: usize| Failure::invalid(format!("element {index} of input {name:?} is no {datatype}"));
    let is_int32 = datatype == Datatype::Int32;
    let int = |(index, value): (usize, Value)| {
        value.as_i64().filter(|&n| !is_int32 || i32::try_from(n).is_ok()).ok_or_else(|| wrong(index))
    };
    let float = |(index, value): (usize, Value)| value.as_f64().map(|x| x as f32).ok_or_else(|| wrong(index));
    let string = |(index, value): (usize, Value)| match value {
        Value::String(text) => Ok(Bytes::from(text)),
        _ => Err(wrong(index)),
    };
    let flat = flat.into_iter().enumerate();
    match datatype {
        Datatype::Int32 | Datatype::Int64 => flat.map(int).collect::<Result<_>>().map(Values::Ints),
        Datatype::Fp32 => flat.map(float).collect::<Result<_>>().map(Values::Floats),
        Datatype::Bytes => flat.map(string).collect::<Result<_>>().map(Values::Bytes),
        other => Err(raw::unsupported(name, other)),
    }
}

/// serde_json bounds how deep lists are nested.
fn flatten(value: Value, flat: &mut Vec<Value>) {
    match value {
        Value::Array(values) => values.into_iter().for_each(|value| flatten(value, flat)),
        value => flat.push(value),
    }
}

#[derive(Serialize)]
struct AnswerHead<'a> {
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    outputs: Vec<AnswerTensor<'a>>,
}

#[derive(Serialize)]
struct AnswerTensor<'a> {
    name: &'a str,
    datatype: &'a str,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Parameters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Data<'a>>,
}

#[derive(Serialize)]
struct Parameters {
    binary_data_size: usize,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Ints(&'a [i64]),
    Floats(&'a [f32]),
    Strings(Vec<String>),
}

/// An answer's body, and the number of its bytes that are JSON if others follow.
pub(super) fn answer(
    (model_name, model_version): (&str, &str),
    request: &Request,
    outputs: &[Tensor],
) -> Result<(Bytes, Option<usize>)> {
    let mut binary = Vec::new();
    let mut tensors = Vec::new();
    for tensor in outputs {
        let asked = request.outputs.iter().find(|(name, _)| *name == tensor.name);
        let is_binary = asked.map_or(request.is_binary, |(_, is_binary)| *is_binary);
        let (parameters, data) = if is_binary {
            let raw = raw::encode(tensor.datatype, &tensor.values);
            binary.extend_from_slice(&raw);
            (Some(Parameters { binary_data_size: raw.len() }), None)
        } else {
            let data = match &tensor.values {
                Values::Ints(values) => Data::Ints(values),
                Values::Floats(values) => Data::Floats(values),
                Values::Bytes(values) => {
                    Data::Strings(values.iter().map(|v| String::from_utf8_lossy(v).into_owned()).collect())
                }
            };
            (None, Some(data))
        };
        let (name, datatype) = (tensor.name.as_str(), tensor.datatype.name());
        tensors.push(AnswerTensor { name, datatype, shape: &tensor.shape, parameters, data });
    }
    let head = AnswerHead { model_name, model_version, id: request.id.as_deref(), outputs: tensors };
    let mut body = serde_json::to_vec(&head).map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
    let json_bytes = (!binary.is_empty()).then_some(body.len());
    body.extend_from_slice(&binary);
    Ok((body.into(), json_bytes))
}

/// A tensor of a model's metadata.
pub(super) fn spec(spec: &TensorSpec) -> Value {
    serde_json::json!({"name": spec.name, "datatype": spec.datatype.name(), "shape": spec.shape})
}
