//! SQL's function `embed`.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float32Builder, ListBuilder};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{exec_err, plan_err, Result, ScalarValue};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use opara_serve::embed::Embedder;

use crate::Models;

/// `embed(text)` and `embed(text, model)` on these models, to register in a session.
pub fn embed(models: Models) -> ScalarUDF {
    ScalarUDF::new_from_impl(Embed::new(models))
}

/// `embed(text)` and `embed(text, model)`: the vector of a text, as a list of 32-bit floats. Null gives null.
///
/// A list has no width in its type, so that processes without models can plan queries.
#[derive(Debug)]
pub struct Embed {
    models: Models,
    signature: Signature,
}

impl Embed {
    /// The function on these models.
    pub fn new(models: Models) -> Self {
        // Where there is no model, the planner fails to compute `embed('a constant')` ahead, and leaves it to executors.
        Self { models, signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl PartialEq for Embed {
    fn eq(&self, other: &Self) -> bool {
        self.models.is_same(&other.models)
    }
}

impl Eq for Embed {}

impl Hash for Embed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.models.names().hash(state);
    }
}

impl ScalarUDFImpl for Embed {
    fn name(&self) -> &str {
        "embed"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [text] => Ok(vec![text_type(text)?]),
            [text, model] => Ok(vec![text_type(text)?, text_type(model)?]),
            _ => plan_err!("embed takes a text and, if need be, a model's name, not {} arguments", types.len()),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::new_list(DataType::Float32, true))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        if let [_, None] = args.scalar_arguments {
            return plan_err!("embed's second argument names a model, and must be a constant");
        }
        Ok(Arc::new(Field::new(self.name(), self.return_type(&[])?, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let model = match args.args.get(1) {
            None => None,
            Some(ColumnarValue::Scalar(name)) => match name.try_as_str() {
                Some(Some(name)) => Some(name),
                _ => return exec_err!("embed's second argument names a model, and is {name}"),
            },
            Some(ColumnarValue::Array(_)) => return exec_err!("embed's second argument must be a constant"),
        };
        let embedder = self.models.get(model)?;
        match &args.args[0] {
            ColumnarValue::Array(texts) => Ok(ColumnarValue::Array(self.vectors(embedder, texts)?)),
            ColumnarValue::Scalar(text) => {
                let list = self.vectors(embedder, &text.to_array()?)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&list, 0)?))
            }
        }
    }
}

impl Embed {
    /// A list of floats for each text.
    fn vectors(&self, embedder: &Embedder, texts: &ArrayRef) -> Result<ArrayRef> {
        let texts: Vec<Option<&str>> = match texts.data_type() {
            DataType::Utf8 => texts.as_string::<i32>().iter().collect(),
            DataType::LargeUtf8 => texts.as_string::<i64>().iter().collect(),
            DataType::Utf8View => texts.as_string_view().iter().collect(),
            other => return exec_err!("embed takes texts, and got {other}"),
        };
        let present: Vec<&str> = texts.iter().flatten().copied().collect();
        tracing::debug!(rows = texts.len(), nulls = texts.len() - present.len(), "embedding a batch");
        let mut vectors = embedder.embed(&present).map_err(|error| self.models.failure(error))?.into_iter();
        let values = Float32Builder::with_capacity(present.len() * embedder.width());
        let mut lists = ListBuilder::with_capacity(values, texts.len());
        for text in texts {
            let vector = text.and_then(|_| vectors.next());
            lists.values().append_slice(vector.as_deref().unwrap_or(&[]));
            lists.append(vector.is_some());
        }
        Ok(Arc::new(lists.finish()))
    }
}

/// The type in which texts of this type are read.
fn text_type(given: &DataType) -> Result<DataType> {
    match given {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Ok(given.clone()),
        DataType::Null => Ok(DataType::Utf8),
        DataType::Dictionary(_, values) => text_type(values),
        other => plan_err!("embed takes texts, and this is {other}: convert it, as in embed(cast(x as varchar))"),
    }
}
