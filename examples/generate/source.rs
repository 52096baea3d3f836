//! The source of a model: configuration, weights and tokenizer.

use std::path::Path;

use anyhow::{ensure, Result};
use candle::Device;
use opara_models::decoder::{Config, Decoder, GgufFile, Message, Pieces, Text};
use opara_weights::{Checkpoint, Loaded};

use crate::Args;

/// A model that is not loaded yet.
pub enum Source {
    /// A folder, a file of safetensors, or an id on the hub.
    Checkpoint { checkpoint: Box<Checkpoint>, config: Config, text: Text },
    /// A GGUF file.
    Gguf { file: GgufFile, config: Config, text: Text },
    /// Random weights.
    Random(Config),
}

impl Source {
    /// Finds the model that the options name.
    pub fn find(args: &Args) -> Result<Self> {
        let Some(model) = args.options.model.as_deref() else {
            let config = Config::named(&args.random).expect("the options allow known names alone");
            return Ok(Self::Random(config));
        };
        let path = Path::new(model);
        if path.extension().is_some_and(|extension| extension == "gguf") {
            let file = GgufFile::from(path).allow_unread(args.options.allow_unread);
            let (config, text) = (Config::of_gguf(file.clone())?, Text::of_gguf(path)?);
            text.check_vocabulary(config.vocab)?;
            return Ok(Self::Gguf { config, text, file });
        }
        let checkpoint = Checkpoint::find(model)?.allow_unread(args.options.allow_unread).keep_floats(args.keep_fp8);
        let config = Config::of_checkpoint(&checkpoint)?;
        let text = Text::of_checkpoint(&checkpoint)?;
        text.check_vocabulary(config.vocab)?;
        Ok(Self::Checkpoint { checkpoint: Box::new(checkpoint), config, text })
    }

    fn config(&self) -> &Config {
        match self {
            Self::Checkpoint { config, .. } | Self::Gguf { config, .. } | Self::Random(config) => config,
        }
    }

    fn text(&self) -> Option<&Text> {
        match self {
            Self::Checkpoint { text, .. } | Self::Gguf { text, .. } => Some(text),
            Self::Random(_) => None,
        }
    }

    pub fn is_random(&self) -> bool {
        matches!(self, Self::Random(_))
    }

    /// The prompt's tokens. With random weights, bytes are tokens.
    pub fn prompt(&self, args: &Args) -> Result<Vec<u32>> {
        if let Some(tokens) = args.prompt_tokens {
            return Ok((0..tokens as u32).map(|at| 1 + at * 31 % (self.config().vocab as u32 - 1)).collect());
        }
        Ok(match self.text() {
            None => args.prompt.bytes().map(|byte| u32::from(byte) % self.config().vocab as u32).collect(),
            Some(text) if args.chat => text.encode_chat(&vec![Message::new("user", &args.prompt)].into())?,
            Some(text) => text.encode(&args.prompt)?,
        })
    }

    /// The tokens that end a text.
    pub fn ends(&self) -> Vec<u32> {
        self.config().eos.clone()
    }

    /// The model, if the device has room for it.
    pub fn load(&self, args: &Args, context: usize, device: &Device) -> Result<Decoder> {
        let options = &args.options;
        let (config, dtype) = (self.config(), options.dtype());
        if let Self::Gguf { file, .. } = self {
            let path = options.model.as_deref().unwrap_or_default();
            ensure!(args.quantize.is_none(), "{path} is quantised already: leave --quantize out");
            return Ok(Decoder::load_gguf(file.clone(), dtype, device, options.batch, context)?);
        }
        let checkpoint = match self {
            Self::Checkpoint { checkpoint, .. } => Some(&**checkpoint),
            _ => None,
        };
        let check = |loaded: &Loaded| config.check_read(loaded);
        if let Some(to) = args.quantize() {
            let load =
                |vb| Decoder::load_quantized(vb, config, to, options.batch, context).map_err(candle::Error::wrap);
            return options.load(checkpoint, device, load, check);
        }
        if let Some(checkpoint) = checkpoint {
            return Ok(Decoder::of_checkpoint(checkpoint, config, dtype, device, options.batch, context)?);
        }
        config.fits(options.batch, context, dtype, device)?;
        let load = |vb| Decoder::load(vb, config, context).map_err(candle::Error::wrap);
        options.load(checkpoint, device, load, check)
    }

    /// A function from one token to its text, and from none to what is held back at the end; without a tokenizer, to its number.
    pub fn pieces(&self) -> Box<dyn FnMut(Option<u32>) -> Result<String> + '_> {
        match self.text() {
            Some(text) => {
                let mut pieces = Pieces::default();
                Box::new(move |token| match token {
                    Some(token) => Ok(text.piece(&mut pieces, token)?),
                    None => Ok(text.rest(&pieces)?),
                })
            }
            None => Box::new(|token| Ok(token.map_or_else(String::new, |token| format!("{token} ")))),
        }
    }
}
