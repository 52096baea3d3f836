//! A text embedder behind a batcher, with the inputs and outputs that clients name.

use std::time::Instant;

use super::tokenizing::Tokenizing;
use super::{BoxFuture, Context, Datatype, Embeddings, Failure, Model, Result, Tensor, TensorSpec, Texts, Values};
use crate::batch::{Batcher, Engine, Health, Job, Metrics, Stage};
use crate::embed::{Embedder, TextTokenizer};

/// Bytes of text above which a thread of the runtime's pool for blocking work makes the tokens, so that connections are
/// not held up: some 5 ms.
const INLINE_BYTES: usize = 16 << 10;

/// A text embedder behind a batcher.
///
/// It takes either `text` (BYTES, `(n)` or `(n, 1)`, UTF-8), or `input_ids` with or without `attention_mask` (INT64 or INT32,
/// both `(n, tokens)`, the mask ones followed by zeros), and gives `embedding` (FP32, `(n, width)`).
pub struct EmbeddingModel<E: Engine<Row = Vec<u32>, Answer = Vec<f32>>> {
    batcher: Batcher<E>,
    tokenizer: TextTokenizer,
    vocabulary: usize,
    width: usize,
    tokenizing: Tokenizing,
    metrics: Metrics,
}

impl<E: Engine<Row = Vec<u32>, Answer = Vec<f32>>> EmbeddingModel<E> {
    /// Vectors of `width` elements, from ids below `vocabulary`.
    pub fn new(
        batcher: Batcher<E>,
        tokenizer: TextTokenizer,
        vocabulary: usize,
        width: usize,
        metrics: Metrics,
    ) -> Self {
        Self { batcher, tokenizer, vocabulary, width, tokenizing: Tokenizing::default(), metrics }
    }

    async fn tokens(&self, texts: Vec<String>, context: &Context) -> Result<Vec<Vec<u32>>> {
        let start = Instant::now();
        let rows = if texts.iter().map(String::len).sum::<usize>() <= INLINE_BYTES {
            self.tokenizer.encode(&texts)
        } else {
            let tokenizer = self.tokenizer.clone();
            self.tokenizing.run(context, move || tokenizer.encode(&texts)).await?
        };
        self.metrics.time(Stage::Tokenize, start.elapsed());
        Ok(rows?)
    }

    async fn vectors(&self, texts: Texts, context: Context) -> Result<Embeddings> {
        let rows = match texts {
            Texts::Plain(texts) => self.tokens(texts, &context).await?,
            Texts::Tokens(rows) => {
                Embedder::check(&rows, self.vocabulary)?;
                if let Some(row) = rows.iter().position(Vec::is_empty) {
                    return Err(Failure::invalid(format!("row {row} has no tokens")));
                }
                rows
            }
        };
        let tokens = rows.iter().map(Vec::len).sum();
        let job = Job::of(rows).client(context.client).deadline(context.deadline);
        let vectors = self.batcher.submit(job)?.answers().await?;
        Ok(Embeddings { vectors, tokens })
    }
}

impl<E: Engine<Row = Vec<u32>, Answer = Vec<f32>>> Model for EmbeddingModel<E> {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![
            TensorSpec { name: "text", datatype: Datatype::Bytes, shape: vec![-1] },
            TensorSpec { name: "input_ids", datatype: Datatype::Int64, shape: vec![-1, -1] },
            TensorSpec { name: "attention_mask", datatype: Datatype::Int64, shape: vec![-1, -1] },
        ]
    }

    fn outputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec { name: "embedding", datatype: Datatype::Fp32, shape: vec![-1, self.width as i64] }]
    }

    fn platform(&self) -> &'static str {
        "opara_candle_bert_embedding"
    }

    fn infer(&self, inputs: Vec<Tensor>, context: Context) -> BoxFuture<'_, Result<Vec<Tensor>>> {
        Box::pin(async move {
            let Embeddings { vectors, .. } = self.vectors(texts_of(inputs)?, context).await?;
            let shape = vec![vectors.len(), self.width];
            let values = Values::Floats(vectors.concat());
            Ok(vec![Tensor { name: "embedding".into(), datatype: Datatype::Fp32, shape, values }])
        })
    }

    fn embed(&self, texts: Texts, context: Context) -> BoxFuture<'_, Result<Embeddings>> {
        Box::pin(self.vectors(texts, context))
    }

    fn is_ready(&self) -> bool {
        self.batcher.is_ready()
    }

    fn is_lost(&self) -> bool {
        self.batcher.is_lost()
    }

    fn health(&self) -> Health {
        self.batcher.health()
    }

    fn drain(&self) {
        self.batcher.drain();
    }
}

/// The texts of a request's tensors.
fn texts_of(inputs: Vec<Tensor>) -> Result<Texts> {
    let (mut text, mut ids, mut mask) = (None, None, None);
    for tensor in inputs {
        let slot = match tensor.name.as_str() {
            "text" => &mut text,
            "input_ids" => &mut ids,
            "attention_mask" => &mut mask,
            name => {
                let message = format!("there is no input {name:?}: give `text`, or `input_ids` and `attention_mask`");
                return Err(Failure::invalid(message));
            }
        };
        if let Some(first) = slot.replace(tensor) {
            return Err(Failure::invalid(format!("input {:?} is given twice", first.name)));
        }
    }
    match (text, ids, mask) {
        (Some(text), None, None) => plain(text),
        (None, Some(ids), mask) => tokens(ids, mask),
        _ => Err(Failure::invalid("give either `text`, or `input_ids` with or without `attention_mask`")),
    }
}

fn plain(text: Tensor) -> Result<Texts> {
    let Values::Bytes(values) = text.values else {
        return Err(Failure::invalid(format!("input \"text\" is {} and must be BYTES", text.datatype)));
    };
    if !matches!(text.shape[..], [_] | [_, 1]) {
        return Err(Failure::invalid(format!("input \"text\" has shape {:?} and must have (n) or (n, 1)", text.shape)));
    }
    let decode = |(index, bytes): (usize, &bytes::Bytes)| {
        let text = std::str::from_utf8(bytes);
        text.map(str::to_owned).map_err(|_| Failure::invalid(format!("element {index} of \"text\" is not UTF-8")))
    };
    Ok(Texts::Plain(values.iter().enumerate().map(decode).collect::<Result<_>>()?))
}

fn tokens(ids: Tensor, mask: Option<Tensor>) -> Result<Texts> {
    let (rows, ids) = matrix(ids)?;
    if rows == 0 {
        return Ok(Texts::Tokens(Vec::new()));
    }
    let lengths = match mask {
        None => vec![ids.len() / rows; rows],
        Some(mask) => {
            let (mask_rows, mask) = matrix(mask)?;
            if (mask_rows, mask.len()) != (rows, ids.len()) {
                return Err(Failure::invalid("`attention_mask` must have the shape of `input_ids`"));
            }
            mask.chunks(mask.len() / rows).enumerate().map(masked_length).collect::<Result<_>>()?
        }
    };
    let row = |(index, length): (usize, usize)| {
        let row = &ids[index * (ids.len() / rows)..][..length];
        let id = |&id: &i64| {
            u32::try_from(id).map_err(|_| Failure::invalid(format!("row {index} has token {id}, which is no token id")))
        };
        row.iter().map(id).collect::<Result<Vec<u32>>>()
    };
    Ok(Texts::Tokens(lengths.into_iter().enumerate().map(row).collect::<Result<_>>()?))
}

/// Rows and elements of a tensor `(n, tokens)` of integers.
fn matrix(tensor: Tensor) -> Result<(usize, Vec<i64>)> {
    let Tensor { name, datatype, shape, values } = tensor;
    let Values::Ints(values) = values else {
        return Err(Failure::invalid(format!("input {name:?} is {datatype} and must be INT64 or INT32")));
    };
    match shape[..] {
        [_, 0] => Err(Failure::invalid(format!("input {name:?} has rows without tokens"))),
        [rows, _] => Ok((rows, values)),
        _ => Err(Failure::invalid(format!("input {name:?} has shape {shape:?} and must have (n, tokens)"))),
    }
}

/// How many tokens a row of a mask leaves.
fn masked_length((index, mask): (usize, &[i64])) -> Result<usize> {
    let length = mask.iter().take_while(|&&one| one == 1).count();
    match mask[length..].iter().all(|&zero| zero == 0) {
        true => Ok(length),
        false => Err(Failure::invalid(format!("row {index} of `attention_mask` must be ones followed by zeros"))),
    }
}
