//! Settings: flags, and a file of the same names in TOML. Flags go before the file.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use candle::{DType, Device};
use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::batch::Buckets;
use crate::embed::{Size, TextModel};
use crate::generate::KvBudget;
use crate::protocol::Limits;

use super::telemetry::LogFormat;

/// Type of weights and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are candle's")]
pub enum Dtype {
    #[default]
    F32,
    F16,
    Bf16,
}

impl From<Dtype> for DType {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::BF16,
        }
    }
}

/// Serves models over the Open Inference Protocol (HTTP and gRPC), and OpenAI's embeddings and completions.
///
/// All flags can be set in a file, too, by the same names with `_` for `-`; models there are a list of "NAME=PATH".
#[derive(Debug, Clone, Default, Parser, Serialize, Deserialize)]
#[command(version, name = "opara-serve")]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// A file of settings, in TOML.
    #[arg(long)]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// Address to listen on. Default: 127.0.0.1.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<IpAddr>,

    /// Port for HTTP and gRPC; 0 takes a free one. Default: 8000.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,

    /// A second port, which answers the same, for clients that expect gRPC on a port of its own.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_port: Option<u16>,

    /// A model: its name, and the folder of its checkpoint, which says what kind of model it is, or a GGUF file. May be given
    /// several times. Without one, `bert` (embeddings) and `tiny-decoder` (texts) with random weights are served.
    #[arg(long = "model", value_name = "NAME=PATH")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub model: Vec<String>,

    /// Size of `bert` with random weights. Default: base.
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,

    /// Seed of random weights. Default: 0.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,

    /// Run on the CPU.
    #[arg(long)]
    #[serde(skip_serializing_if = "is_false")]
    pub cpu: bool,

    /// GPUs to run on, each with the models' weights and plans. Default: 0.
    #[arg(long, value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<usize>,

    /// Type of weights and activations. Vectors are always f32. Default: f32.
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,

    /// Texts that a decoder writes at once, on each device. Default: 256 with weights of 16 bits on Hopper, 8 on other GPUs and with other
    /// weights, and 4 on the CPU.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<usize>,

    /// Tokens of a text that a decoder writes, prompt and answer together. Default: 4096, or the model's own limit if that is
    /// less.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,

    /// Bytes of keys and values of a decoder's texts, on each device. Default: as many as all of them need at their longest, or, if that is
    /// less, four fifths of what is free once the weights are loaded, divided by the number of models.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,

    /// Parts of prompts, of 128 tokens, that a GPU reads together at most; texts that are written wait for that. Default: 64, or where there is
    /// little memory for keys and values, down to 16.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_parts: Option<usize>,

    /// Rows that a batch of padded texts may have. Default: 1,2,4,8,16,32, and 1 on the CPU. Without this and --lengths, a GPU has texts of BERT's
    /// kin side by side, without padding.
    #[arg(long, value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub batches: Vec<usize>,

    /// Lengths in tokens that rows are padded to; the model's longest is added. Default: 16,32,64,128,256, and
    /// 16,24,32,40,48,56,64,80,96,112,128,160,192,224,256,320,384,448 on the CPU.
    #[arg(long, value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<usize>,

    /// Tokens that a batch may have, which no text exceeds. Default: 4096 side by side, or the longest text's up to 8192; 8192 padded, and 512 on the
    /// CPU.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_tokens: Option<usize>,

    /// Batches that a device has at a time: one runs while another is prepared or read. Default: 2, and on the CPU
    /// one for each core, up to 8.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<usize>,

    /// Cut texts that are too long, instead of refusing them.
    #[arg(long)]
    #[serde(skip_serializing_if = "is_false")]
    pub truncate: bool,

    /// Ignore what this program does not know and what may change an answer, with a warning: fields of requests, and
    /// of models' configurations, their quantizations, tensors and metadata.
    #[arg(long)]
    #[serde(skip_serializing_if = "is_false")]
    pub allow_unread: bool,

    /// Keep 8-bit floats (fp8) of decoders as they are on GPUs that multiply with them (Hopper, with --dtype f16 or bf16): half the
    /// memory, faster for up to 16 texts at once, and slower for 64 and more.
    #[arg(long)]
    #[serde(skip_serializing_if = "is_false")]
    pub keep_fp8: bool,

    /// Compare one batch of an embedder in so many with the module: see `Builder::recheck`. Default: 0, never.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recheck: Option<u64>,

    /// Rows, or texts to write, that may wait for a worker, for each model. Default: 4096.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_rows: Option<usize>,

    /// Rows that a request may have. Default: 2048.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<usize>,

    /// Requests that may be under way, with their bodies in memory. Default: 4096.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<usize>,

    /// Bytes that a request's body may have. Default: 4194304.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_body_bytes: Option<usize>,

    /// Seconds that a request's head, its body, or a message of a stream may take to arrive, and that a client may take for a part of
    /// an answer. Default: 10.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_seconds: Option<f64>,

    /// Seconds that a connection is kept without a request, and a stream without a message. Default: 75.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive_seconds: Option<f64>,

    /// Seconds after which a request without an answer, or a stream without a beginning, fails. Default: 60.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_seconds: Option<f64>,

    /// Seconds between the signal to stop and the end of accepting connections, for load balancers to notice. Default: 0.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_delay_seconds: Option<f64>,

    /// Seconds that connections have to end after that. Default: 30.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_seconds: Option<f64>,

    /// Let clients load and unload the configured models.
    #[arg(long)]
    #[serde(skip_serializing_if = "is_false")]
    pub model_control: bool,

    /// A file of keys, one a line, of which clients must send one as `Authorization: Bearer KEY`. Health needs none.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_keys: Option<PathBuf>,

    /// Origins of pages, such as `https://example.org`, whose scripts may ask this server (CORS); `*` for all. Default: none.
    #[arg(long, value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cors_origin: Vec<String>,

    /// The certificate chain for TLS, in PEM.
    #[arg(long, requires = "tls_key")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,

    /// The private key for TLS, in PEM.
    #[arg(long, requires = "tls_cert")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,

    /// Form of the log, on stderr. Default: text. `RUST_LOG` sets what is logged.
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<LogFormat>,

    /// Where a collector of OpenTelemetry takes traces over gRPC, such as http://localhost:4317. Needs the feature `otel`.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Settings {
    /// Flags, and what the file that they name says beside them.
    ///
    /// # Errors
    /// A file that cannot be read, has unknown names or wrong values; settings that contradict each other.
    pub fn read() -> Result<Self> {
        Self::parse().with_file()
    }

    /// These flags, and what the file that they name says beside them.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn with_file(self) -> Result<Self> {
        let merged = match &self.config {
            Some(path) => self.over(path).with_context(|| path.display().to_string())?,
            None => self,
        };
        merged.check()?;
        Ok(merged)
    }

    fn over(&self, path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)?;
        // With the line of what is wrong.
        toml::from_str::<Self>(&text)?;
        let mut merged: toml::Table = text.parse()?;
        merged.extend(toml::Table::try_from(self)?);
        Ok(merged.try_into()?)
    }

    fn check(&self) -> Result<()> {
        self.models()?;
        ensure!(self.tls_cert.is_some() == self.tls_key.is_some(), "TLS needs both tls-cert and tls-key");
        let seconds = [
            self.read_seconds,
            self.keep_alive_seconds,
            self.request_seconds,
            self.drain_delay_seconds,
            self.drain_seconds,
        ];
        for seconds in seconds.into_iter().flatten() {
            ensure!((0. ..=86_400.).contains(&seconds), "{seconds} seconds are not between 0 and a day");
        }
        ensure!(self.request_seconds != Some(0.), "request-seconds must be more than 0");
        ensure!(self.sequences != Some(0) && self.context != Some(0), "sequences and context must be more than 0");
        ensure!(
            cfg!(feature = "otel") || self.otlp_endpoint.is_none(),
            "this build has no traces: build with the feature otel"
        );
        Ok(())
    }

    /// Names, and folders or files.
    pub(super) fn models(&self) -> Result<Vec<(String, PathBuf)>> {
        let mut models: Vec<(String, PathBuf)> = Vec::new();
        for model in &self.model {
            let Some((name, folder)) = model.split_once('=') else { bail!("model {model:?} is not NAME=PATH") };
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            ensure!(
                !name.is_empty() && name.chars().all(is_plain),
                "a model's name has letters, digits and -_. only: {name:?}"
            );
            ensure!(models.iter().all(|(other, _)| other != name), "the name {name:?} is given to two models");
            models.push((name.into(), folder.into()));
        }
        Ok(models)
    }

    /// The shapes of batches of a model that takes texts of `limit` tokens.
    ///
    /// # Errors
    /// Settings that contradict each other.
    pub(super) fn buckets(&self, model: &TextModel, device: &Device) -> Result<Buckets> {
        Ok(model.buckets(device, self.dtype(), &self.batches, &self.lengths, self.batch_tokens)?)
    }

    /// How a decoder that takes texts of up to `limit` tokens runs on a device: so many texts at once, if settings do not say it.
    pub(super) fn kv_budget(&self, limit: usize, sequences: usize) -> KvBudget {
        KvBudget {
            sequences: self.sequences.unwrap_or(sequences),
            context: self.context.unwrap_or(limit.min(4_096)),
            bytes: self.cache_bytes,
            parts: self.prompt_parts,
            models: self.model.len(),
            dtype: self.dtype(),
        }
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype.unwrap_or_default().into()
    }

    pub(super) fn queue_rows(&self) -> usize {
        self.queue_rows.unwrap_or(4_096)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.unwrap_or(if self.cpu { rayon::current_num_threads().min(8) } else { 2 }).max(1)
    }

    /// The bounds on requests that these settings make.
    pub fn limits(&self) -> Limits {
        Limits {
            body_bytes: self.max_body_bytes.unwrap_or(4 << 20),
            body_time: self.read_time(),
            rows: self.max_rows.unwrap_or(2_048),
            requests: self.max_requests.unwrap_or(4_096),
            idle_time: self.keep_alive_time(),
            request_time: Duration::from_secs_f64(self.request_seconds.unwrap_or(60.)),
            allows_unread: self.allow_unread,
        }
    }

    pub(super) fn read_time(&self) -> Duration {
        Duration::from_secs_f64(self.read_seconds.unwrap_or(10.))
    }

    pub(super) fn keep_alive_time(&self) -> Duration {
        Duration::from_secs_f64(self.keep_alive_seconds.unwrap_or(75.))
    }

    pub(super) fn drain_delay(&self) -> Duration {
        Duration::from_secs_f64(self.drain_delay_seconds.unwrap_or(0.))
    }

    pub(super) fn drain_time(&self) -> Duration {
        Duration::from_secs_f64(self.drain_seconds.unwrap_or(30.))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(file: &str, flags: &[&str]) -> Result<Settings> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("serve.toml");
        std::fs::write(&path, file)?;
        let all = ["opara-serve", "--config"].map(Into::into).into_iter().chain([path.into_os_string()]);
        Settings::try_parse_from(all.chain(flags.iter().map(Into::into)))?.with_file()
    }

    #[test]
    fn flags_go_before_the_file() -> Result<()> {
        let file = "port = 1\ncpu = true\nlengths = [8, 16]\nmodel = [\"a=/a\"]\nlog = \"json\"\n";
        let settings = flags(file, &["--port", "2", "--batches", "1,2"])?;
        assert_eq!((settings.port, settings.cpu, settings.log), (Some(2), true, Some(LogFormat::Json)));
        assert_eq!((settings.lengths, settings.batches), (vec![8, 16], vec![1, 2]));
        assert_eq!(settings.model, ["a=/a"]);
        Ok(())
    }

    #[test]
    fn mistakes_are_named() {
        for (file, expected) in [
            ("prt = 1", "unknown field `prt`"),
            ("port = \"x\"", "port"),
            ("model = [\"a\"]", "is not NAME=PATH"),
            ("model = [\"a=x\", \"a=y\"]", "two models"),
            ("model = [\"../a=x\"]", "letters, digits"),
            ("tls_cert = \"x\"", "TLS needs both"),
            ("request_seconds = -1", "not between"),
            ("sequences = 0", "more than 0"),
        ] {
            let error = flags(file, &[]).expect_err(file);
            assert!(format!("{error:#}").contains(expected), "{file}: {error:#}");
        }
    }
}
