//! A model that reads texts behind a batcher, with the inputs and outputs that clients name.

use std::time::Instant;

use super::tokenizing::Tokenizing;
use super::{
    BoxFuture, Context, Datatype, Embeddings, Failure, Model, Reader, Result, Tensor, TensorModel, TensorSpec, Texts,
    Values,
};
use crate::batch::{Batcher, Engine, Health, Job, Metrics, Stage};
use crate::embed::{Answers, EmbedError, Embedder, PoolingMode, TextModel, TextOptions, TextRow, TextTokenizer};

/// Bytes of text above which a thread of the runtime's pool for blocking work makes the tokens, so that connections are
/// not held up: some 5 ms.
const INLINE_BYTES: usize = 16 << 10;

/// The input of pictures.
pub const PIXELS: &str = "pixel_values";

/// A model that reads texts behind a batcher.
///
/// It takes either `text` (BYTES, `(n)` or `(n, 1)`, UTF-8), or `input_ids` with or without `attention_mask` and `token_type_ids`
/// (INT64 or INT32, all `(n, tokens)`, the mask ones followed by zeros). It gives `embedding` (FP32, `(n, width)`); a classifier gives
/// `logits`, and an encoder to words `weights`. A model that sees pictures takes `pixel_values` (FP32, `(n, channels, side, side)`) instead.
pub struct EmbeddingModel<E: Engine<Row: From<TextRow>, Answer = Vec<f32>>> {
    batcher: Batcher<E>,
    tokenizer: TextTokenizer,
    vocabulary: usize,
    token_types: usize,
    width: usize,
    hidden: usize,
    /// Whether tokens have no hidden states.
    is_pooled: bool,
    answers: Answers,
    kind: String,
    /// What sees pictures.
    pictures: Option<TensorModel>,
    tokenizing: Tokenizing,
    metrics: Metrics,
}

impl<E: Engine<Row: From<TextRow>, Answer = Vec<f32>>> EmbeddingModel<E> {
    /// Vectors of `width` elements, from ids below `vocabulary` whose types are 0.
    pub fn new(
        batcher: Batcher<E>,
        tokenizer: TextTokenizer,
        vocabulary: usize,
        width: usize,
        metrics: Metrics,
    ) -> Self {
        let answers = Answers::Vectors(PoolingMode::Mean.into());
        Self {
            batcher,
            tokenizer,
            vocabulary,
            token_types: 1,
            width,
            hidden: width,
            is_pooled: false,
            answers,
            kind: "bert".into(),
            pictures: None,
            tokenizing: Tokenizing::default(),
            metrics,
        }
    }

    /// Takes token types below this number.
    pub fn token_types(mut self, token_types: usize) -> Self {
        self.token_types = token_types;
        self
    }

    /// Has answers and token types as this model.
    pub fn of(mut self, model: &TextModel) -> Self {
        (self.answers, self.kind) = (model.answers(), model.kind().to_owned());
        (self.hidden, self.token_types) = (model.sizes().width, model.token_types());
        self.is_pooled = model.is_pooled();
        self
    }

    /// Gives the vectors of pictures, too: `embedding` of `pixel_values`, which are the names of this model's tensors.
    pub fn seeing(mut self, pictures: Option<TensorModel>) -> Self {
        self.pictures = pictures;
        self
    }

    async fn rows(&self, texts: Texts, options: TextOptions, context: &Context) -> Result<Vec<TextRow>> {
        let start = Instant::now();
        let bytes: usize = match &texts {
            Texts::Plain(texts) => texts.iter().map(String::len).sum(),
            Texts::Pairs(pairs) => pairs.iter().map(|(first, second)| first.len() + second.len()).sum(),
            Texts::Tokens(_) => 0,
        };
        let read = move |tokenizer: &TextTokenizer| match texts {
            Texts::Plain(texts) => tokenizer.rows(&texts, &options),
            Texts::Pairs(pairs) => tokenizer.pairs(&pairs, &options),
            Texts::Tokens(rows) => Ok(rows),
        };
        let rows = if bytes <= INLINE_BYTES {
            read(&self.tokenizer)
        } else {
            let tokenizer = self.tokenizer.clone();
            self.tokenizing.run(context, move || read(&tokenizer)).await?
        };
        self.metrics.time(Stage::Tokenize, start.elapsed());
        Ok(rows?)
    }

    /// Rows of token ids, which have no prompt and are not cut.
    fn checked(&self, mut rows: Vec<TextRow>, options: &TextOptions) -> Result<Vec<TextRow>> {
        let TextOptions { has_tokens, vector, .. } = *options;
        if *options != (TextOptions { has_tokens, vector, ..TextOptions::default() }) {
            return Err(Failure::invalid("`prompt`, `prompt_name` and `truncate` are for texts, not for tokens"));
        }
        self.tokenizer.check(&rows)?;
        rows.iter_mut().for_each(|row| (row.has_tokens, row.vector) = (has_tokens, vector));
        Ok(rows)
    }

    /// The name of its output.
    fn output(&self) -> &'static str {
        match self.answers {
            Answers::Vectors(_) => "embedding",
            Answers::Classes(_) => "logits",
            Answers::Words => "weights",
        }
    }

    async fn vectors(&self, texts: Texts, options: TextOptions, context: Context) -> Result<Embeddings> {
        let (is_vectors, width) = (matches!(self.answers, Answers::Vectors(_)), self.width);
        match options.vector.dimensions {
            Some(dimensions) if !is_vectors || dimensions == 0 || dimensions > width => {
                return Err(EmbedError::Dimensions { dimensions, width }.into());
            }
            _ => {}
        }
        if options.has_tokens && self.is_pooled {
            return Err(EmbedError::NoTokens.into());
        }
        let rows = match texts {
            Texts::Tokens(rows) => self.checked(rows, &options)?,
            texts => self.rows(texts, options, &context).await?,
        };
        // A tokenizer may have tokens that the model lacks. They fail their own request, not those that run beside it.
        Embedder::check(&rows, self.vocabulary, self.token_types)?;
        let tokens = rows.iter().map(|row| row.ids.len()).sum();
        let job = Job::of(rows.into_iter().map(E::Row::from).collect::<Vec<_>>())
            .client(context.client)
            .deadline(context.deadline);
        let vectors = self.batcher.submit(job)?.answers().await?;
        Embedder::check_vectors(&vectors)?;
        Ok(Embeddings { vectors, tokens })
    }
}

impl<E: Engine<Row: From<TextRow>, Answer = Vec<f32>>> Model for EmbeddingModel<E> {
    fn inputs(&self) -> Vec<TensorSpec> {
        let texts = [
            TensorSpec { name: "text".into(), datatype: Datatype::Bytes, shape: vec![-1] },
            TensorSpec { name: "input_ids".into(), datatype: Datatype::Int64, shape: vec![-1, -1] },
            TensorSpec { name: "attention_mask".into(), datatype: Datatype::Int64, shape: vec![-1, -1] },
            TensorSpec { name: "token_type_ids".into(), datatype: Datatype::Int64, shape: vec![-1, -1] },
        ];
        texts.into_iter().chain(self.pictures.iter().flat_map(Model::inputs)).collect()
    }

    fn outputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec { name: self.output().into(), datatype: Datatype::Fp32, shape: vec![-1, self.width as i64] }]
    }

    fn platform(&self) -> &'static str {
        match self.answers {
            Answers::Vectors(_) => "opara_candle_embedding",
            Answers::Classes(_) => "opara_candle_classification",
            Answers::Words => "opara_candle_sparse_embedding",
        }
    }

    fn infer(&self, inputs: Vec<Tensor>, options: TextOptions, context: Context) -> BoxFuture<'_, Result<Vec<Tensor>>> {
        if let (Some(pictures), true) = (&self.pictures, inputs.iter().any(|tensor| tensor.name == PIXELS)) {
            return pictures.infer(inputs, options, context);
        }
        Box::pin(async move {
            let Embeddings { vectors, .. } = self.vectors(texts_of(inputs)?, options, context).await?;
            let shape = vec![vectors.len(), vectors.first().map_or(self.width, Vec::len)];
            let values = Values::Floats(vectors.concat());
            Ok(vec![Tensor { name: self.output().into(), datatype: Datatype::Fp32, shape, values }])
        })
    }

    fn reader(&self) -> Option<Reader<'_>> {
        let Self { answers, tokenizer, kind, width, hidden, .. } = self;
        let buckets = self.batcher.buckets();
        let rows = buckets.iter().map(|bucket| buckets.places(bucket)).max().unwrap_or(1);
        let tokens = buckets.iter().map(|bucket| bucket.batch * bucket.length).max().unwrap_or(1);
        Some(Reader { answers, tokenizer, kind, width: *width, hidden: *hidden, batch: (rows, tokens) })
    }

    fn embed(&self, texts: Texts, options: TextOptions, context: Context) -> BoxFuture<'_, Result<Embeddings>> {
        Box::pin(self.vectors(texts, options, context))
    }

    fn is_ready(&self) -> bool {
        self.batcher.is_ready() && self.pictures.iter().all(Model::is_ready)
    }

    fn is_lost(&self) -> bool {
        self.batcher.is_lost() || self.pictures.iter().any(Model::is_lost)
    }

    fn health(&self) -> Health {
        self.batcher.health()
    }

    fn drain(&self) {
        self.pictures.iter().for_each(Model::drain);
        self.batcher.drain();
    }
}

/// The texts of a request's tensors.
fn texts_of(inputs: Vec<Tensor>) -> Result<Texts> {
    let (mut text, mut ids, mut mask, mut types) = (None, None, None, None);
    for tensor in inputs {
        let slot = match tensor.name.as_str() {
            "text" => &mut text,
            "input_ids" => &mut ids,
            "attention_mask" => &mut mask,
            "token_type_ids" => &mut types,
            name => {
                let known = "give `text`, or `input_ids`, `attention_mask` and `token_type_ids`";
                return Err(Failure::invalid(format!("there is no input {name:?}: {known}")));
            }
        };
        if let Some(first) = slot.replace(tensor) {
            return Err(Failure::invalid(format!("input {:?} is given twice", first.name)));
        }
    }
    match (text, ids, mask, types) {
        (Some(text), None, None, None) => plain(text),
        (None, Some(ids), mask, types) => tokens(ids, mask, types),
        _ => Err(Failure::invalid(
            "give either `text`, or `input_ids` with or without `attention_mask` and `token_type_ids`",
        )),
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

fn tokens(ids: Tensor, mask: Option<Tensor>, types: Option<Tensor>) -> Result<Texts> {
    let (rows, ids) = matrix(ids)?;
    if rows == 0 {
        return Ok(Texts::Tokens(Vec::new()));
    }
    let width = ids.len() / rows;
    let beside = |tensor: Tensor| {
        let name = tensor.name.clone();
        match matrix(tensor)? {
            (other, values) if (other, values.len()) == (rows, ids.len()) => Ok(values),
            _ => Err(Failure::invalid(format!("`{name}` must have the shape of `input_ids`"))),
        }
    };
    let (mask, types) = (mask.map(beside).transpose()?, types.map(beside).transpose()?);
    let row = |(index, row): (usize, &[i64])| {
        let places = index * width..(index + 1) * width;
        let length = mask.as_ref().map_or(Ok(width), |mask| masked_length((index, &mask[places.clone()])))?;
        let types = types.as_ref().map_or(&[][..], |types| &types[places.clone()][..length]);
        let has_types = types.iter().any(|&kind| kind != 0);
        Ok(TextRow {
            ids: numbers(index, "token", &row[..length])?,
            types: if has_types { numbers(index, "token type", types)? } else { Vec::new() },
            ..TextRow::default()
        })
    };
    Ok(Texts::Tokens(ids.chunks(width).enumerate().map(row).collect::<Result<_>>()?))
}

/// A row's numbers, which cannot be negative.
fn numbers(row: usize, kind: &str, values: &[i64]) -> Result<Vec<u32>> {
    let wrong = |value: i64| Failure::invalid(format!("row {row} has {kind} {value}, which is out of range"));
    values.iter().map(|&value| u32::try_from(value).map_err(|_| wrong(value))).collect()
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
