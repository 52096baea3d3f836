//! The Open Inference Protocol over gRPC.

use std::collections::HashMap;
use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::Extensions;
use bytes::Bytes;
use futures_util::stream::unfold;
use tokio_stream::{Stream, StreamExt};
use tonic::codec::CompressionEncoding;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::batch::Stage;
use crate::embed::TextOptions;
use crate::model::{self, Datatype, Failure, Kind, Place, Result, State, Tensor, Values};
use crate::pb::grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer};
use crate::pb::infer_parameter::ParameterChoice;
use crate::pb::model_infer_request::InferInputTensor;
use crate::pb::model_infer_response::InferOutputTensor;
use crate::pb::model_metadata_response::TensorMetadata;
use crate::pb::repository_index_response::ModelIndex;
use crate::pb::*;

use super::fields::unread;
use super::service::{Limits, Service};
use super::{oip_json, raw, MessagePlaces, EXTENSIONS, HARMLESS_TO_MODELS, MODEL_VERSION, NAME, VERSION};

const PROTOCOL: &str = "oip_grpc";

/// The service as part of a server.
pub fn service(service: Service) -> GrpcInferenceServiceServer<Grpc> {
    let limit = service.limits.body_bytes;
    let server = GrpcInferenceServiceServer::new(Grpc(service))
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .send_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Deflate);
    server.max_decoding_message_size(limit).max_encoding_message_size(usize::MAX)
}

/// The service's calls.
pub struct Grpc(Service);

impl Grpc {
    async fn infer(&self, request: ModelInferRequest, of: &Extensions) -> Result<ModelInferResponse> {
        let ModelInferRequest { model_name, model_version, id, parameters, inputs, outputs, raw_input_contents } =
            request;
        self.0.model(&model_name, &model_version)?;
        let metrics = self.0.registry.model(&model_name);
        let Limits { body_bytes: limit, allows_unread, .. } = self.0.limits;
        refuse_unread("parameters", &parameters, &["timeout", "prompt", "prompt_name", "truncate"], allows_unread)?;
        for (index, input) in inputs.iter().enumerate() {
            refuse_unread(&format!("inputs[{index}].parameters"), &input.parameters, &[], allows_unread)?;
        }
        for (index, output) in outputs.iter().enumerate() {
            let at = format!("outputs[{index}].parameters");
            // All outputs are bytes.
            refuse_unread(&at, &output.parameters, &["binary_data"], allows_unread)?;
        }
        let timeout = parameters.get("timeout").map(timeout).transpose()?.flatten();
        let text = |name| text(&parameters, name);
        let options = TextOptions::of(text("prompt")?, text("prompt_name")?, flag(&parameters, "truncate")?)?;
        let context = self.0.context(of, timeout)?;
        let inputs = metrics.timed(Stage::Parse, || tensors(inputs, raw_input_contents, limit))?;
        let names: Vec<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
        let answer = self.0.infer((&model_name, &model_version), (inputs, options), &names, context).await?;
        let (outputs, raw_output_contents) =
            metrics.timed(Stage::Respond, || answer.into_iter().map(output).unzip::<_, _, Vec<_>, Vec<_>>());
        let model_version = MODEL_VERSION.into();
        Ok(ModelInferResponse {
            model_name,
            model_version,
            id,
            parameters: Default::default(),
            outputs,
            raw_output_contents,
        })
    }
}

impl Grpc {
    /// Refuses parameters of loading and unloading.
    fn refuse_control<'a>(&self, at: &str, mut names: impl Iterator<Item = &'a String>) -> Result<()> {
        names.try_for_each(|name| match HARMLESS_TO_MODELS.contains(&name.as_str()) {
            true => Ok(()),
            false => unread(&format!("{at}.{name}"), self.0.limits.allows_unread),
        })
    }

    /// Answers a message of a stream. Its place is kept until the answer is sent.
    async fn answer(&self, request: ModelInferRequest, of: &mut Extensions) -> ModelStreamInferResponse {
        let messages = of.get::<Arc<MessagePlaces>>().cloned();
        let place = messages.as_ref().map_or_else(|| Ok(Place::default()), |messages| messages.claim());
        let result = match place {
            Ok(place) => {
                of.insert(place);
                self.infer(request, of).await
            }
            Err(failure) => Err(failure),
        };
        if let (Some(messages), Some(place)) = (messages, of.remove()) {
            messages.answered(place);
        }
        self.0.count(PROTOCOL, &result);
        match result {
            Ok(answer) => ModelStreamInferResponse { error_message: String::new(), infer_response: Some(answer) },
            Err(failure) => ModelStreamInferResponse { error_message: failure.message, infer_response: None },
        }
    }
}

/// Refuses parameters that are not read, unless they change no answer. One without a value is absent.
fn refuse_unread(
    at: &str,
    parameters: &HashMap<String, InferParameter>,
    read: &[&str],
    is_allowed: bool,
) -> Result<()> {
    let given = parameters.iter().filter(|(_, value)| value.parameter_choice.is_some()).map(|(name, _)| name.as_str());
    for name in given.filter(|name| !read.contains(name) && !oip_json::HARMLESS.contains(name)) {
        if name.starts_with("shared_memory_") {
            return Err(Failure::new(Kind::Unimplemented, "shared memory is not offered"));
        }
        if name == "classification" {
            return Err(Failure::new(Kind::Unimplemented, "the classification extension is not offered"));
        }
        unread(&format!("{at}.{name}"), is_allowed)?;
    }
    Ok(())
}

/// The request's tensors: all of them as bytes, or each with its own contents.
fn tensors(inputs: Vec<InferInputTensor>, raw: Vec<Bytes>, limit: usize) -> Result<Vec<Tensor>> {
    if !raw.is_empty() && raw.len() != inputs.len() {
        let message = format!("raw_input_contents has {} tensors for {} inputs", raw.len(), inputs.len());
        return Err(Failure::invalid(message));
    }
    let mut raw = raw.into_iter();
    inputs.into_iter().map(|input| tensor(input, raw.next(), limit)).collect()
}

fn tensor(input: InferInputTensor, raw: Option<Bytes>, limit: usize) -> Result<Tensor> {
    let InferInputTensor { name, datatype, shape, contents, parameters: _ } = input;
    let datatype: Datatype = datatype.parse()?;
    let (shape, elements) = model::checked_shape(&name, &shape, limit)?;
    let values = match (raw, contents) {
        (Some(_), Some(_)) => {
            return Err(Failure::invalid(format!("input {name:?} has both contents and raw_input_contents")))
        }
        (Some(bytes), None) => raw::decode(&name, datatype, elements, bytes)?,
        (None, contents) => {
            let mut contents = contents.unwrap_or_default();
            let values = match datatype {
                Datatype::Int64 => Values::Ints(take(&mut contents.int64_contents)),
                Datatype::Int32 => Values::Ints(take(&mut contents.int_contents).into_iter().map(i64::from).collect()),
                Datatype::Fp32 => Values::Floats(take(&mut contents.fp32_contents)),
                Datatype::Bytes => Values::Bytes(take(&mut contents.bytes_contents)),
                other => return Err(raw::unsupported(&name, other)),
            };
            if contents != InferTensorContents::default() {
                return Err(Failure::invalid(format!("input {name:?} has contents of another type than {datatype}")));
            }
            if values.len() != elements {
                let message = format!("input {name:?} has {} elements, and its shape says {elements}", values.len());
                return Err(Failure::invalid(message));
            }
            values
        }
    };
    Ok(Tensor { name, datatype, shape, values })
}

fn timeout(parameter: &InferParameter) -> Result<Option<u64>> {
    let micros = match parameter.parameter_choice {
        None => return Ok(None),
        Some(ParameterChoice::Int64Param(micros)) => u64::try_from(micros).ok(),
        Some(ParameterChoice::Uint64Param(micros)) => Some(micros),
        _ => None,
    };
    micros
        .map(Some)
        .ok_or_else(|| Failure::invalid("parameter \"timeout\" must be a whole number of microseconds, at least 0"))
}

/// A parameter that is a text. One without a value is absent.
fn text(parameters: &HashMap<String, InferParameter>, name: &str) -> Result<Option<String>> {
    match parameters.get(name).and_then(|parameter| parameter.parameter_choice.as_ref()) {
        None => Ok(None),
        Some(ParameterChoice::StringParam(text)) => Ok(Some(text.clone())),
        Some(_) => Err(Failure::invalid(format!("parameter {name:?} must be a text"))),
    }
}

/// A parameter that is true or false. One without a value is absent.
fn flag(parameters: &HashMap<String, InferParameter>, name: &str) -> Result<Option<bool>> {
    match parameters.get(name).and_then(|parameter| parameter.parameter_choice.as_ref()) {
        None => Ok(None),
        Some(ParameterChoice::BoolParam(flag)) => Ok(Some(*flag)),
        Some(_) => Err(Failure::invalid(format!("parameter {name:?} must be true or false"))),
    }
}

fn output(tensor: Tensor) -> (InferOutputTensor, Bytes) {
    let raw = raw::encode(tensor.datatype, &tensor.values);
    let shape = tensor.shape.iter().map(|&dim| dim as i64).collect();
    let datatype = tensor.datatype.name().into();
    (InferOutputTensor { name: tensor.name, datatype, shape, parameters: Default::default(), contents: None }, raw)
}

/// A failure as this protocol says it.
pub(crate) fn status(failure: &Failure) -> Status {
    let code = match failure.kind {
        Kind::Invalid | Kind::OtherModel | Kind::Method | Kind::Encoding => Code::InvalidArgument,
        Kind::Unauthorized => Code::Unauthenticated,
        Kind::Forbidden => Code::PermissionDenied,
        Kind::NotFound => Code::NotFound,
        Kind::TooLarge | Kind::ContextLength => Code::InvalidArgument,
        Kind::Full => Code::ResourceExhausted,
        Kind::BodyTimeout | Kind::Deadline => Code::DeadlineExceeded,
        Kind::Unavailable => Code::Unavailable,
        Kind::Unimplemented => Code::Unimplemented,
        Kind::Internal => Code::Internal,
    };
    let mut status = Status::new(code, failure.message.clone());
    if let Some(time) = failure.retry_after {
        status.metadata_mut().insert("retry-after", time.as_secs().max(1).into());
    }
    status
}

type Reply<T> = std::result::Result<Response<T>, Status>;

fn reply<T>(result: Result<T>) -> Reply<T> {
    result.map(Response::new).map_err(|failure| status(&failure))
}

#[tonic::async_trait]
impl GrpcInferenceService for Grpc {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Reply<ServerLiveResponse> {
        reply(Ok(ServerLiveResponse { live: !self.0.models.is_lost() }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Reply<ServerReadyResponse> {
        reply(Ok(ServerReadyResponse { ready: self.0.models.is_ready() }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Reply<ModelReadyResponse> {
        let ModelReadyRequest { name, version } = request.into_inner();
        match self.0.model(&name, &version) {
            Err(failure) if failure.kind == Kind::Unavailable => reply(Ok(ModelReadyResponse { ready: false })),
            model => reply(model.map(|model| ModelReadyResponse { ready: model.is_ready() })),
        }
    }

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> Reply<ServerMetadataResponse> {
        let extensions = EXTENSIONS.map(String::from).into();
        reply(Ok(ServerMetadataResponse { name: NAME.into(), version: VERSION.into(), extensions }))
    }

    async fn model_metadata(&self, request: Request<ModelMetadataRequest>) -> Reply<ModelMetadataResponse> {
        let ModelMetadataRequest { name, version } = request.into_inner();
        let spec = |spec: model::TensorSpec| TensorMetadata {
            name: spec.name.into_owned(),
            datatype: spec.datatype.name().into(),
            shape: spec.shape,
        };
        reply(self.0.model(&name, &version).map(|model| ModelMetadataResponse {
            versions: vec![MODEL_VERSION.into()],
            platform: model.platform().into(),
            inputs: model.inputs().into_iter().map(spec).collect(),
            outputs: model.outputs().into_iter().map(spec).collect(),
            name,
        }))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Reply<ModelInferResponse> {
        let (_, extensions, request) = request.into_parts();
        let result = self.infer(request, &extensions).await;
        self.0.count(PROTOCOL, &result);
        reply(result)
    }

    type ModelStreamInferStream =
        Pin<Box<dyn Stream<Item = std::result::Result<ModelStreamInferResponse, Status>> + Send>>;

    /// Answers one request after the other. A request that fails has its error in its own response, and the stream goes on.
    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Reply<Self::ModelStreamInferStream> {
        let (_, extensions, requests) = request.into_parts();
        let grpc = Grpc(self.0.clone());
        let answers = unfold(Some((grpc, extensions, requests)), |open| async {
            let (grpc, mut extensions, mut requests) = open?;
            match requests.next().await? {
                Ok(request) => {
                    let answer = grpc.answer(request, &mut extensions).await;
                    Some((Ok(answer), Some((grpc, extensions, requests))))
                }
                // The requests after it would be the same error without end.
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn repository_index(&self, request: Request<RepositoryIndexRequest>) -> Reply<RepositoryIndexResponse> {
        let only_ready = request.into_inner().ready;
        let row = |(name, state): (&str, State)| {
            let (state, reason) = state.told();
            ModelIndex { name: name.into(), version: MODEL_VERSION.into(), state: state.into(), reason }
        };
        let models = self.0.models.states().map(row).filter(|row| !only_ready || row.state == "READY").collect();
        reply(Ok(RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Reply<RepositoryModelLoadResponse> {
        let RepositoryModelLoadRequest { model_name, parameters, .. } = request.into_inner();
        let loaded = match self.refuse_control("parameters", parameters.keys()) {
            Ok(()) => self.0.load(model_name).await,
            Err(failure) => Err(failure),
        };
        reply(loaded.map(|()| RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Reply<RepositoryModelUnloadResponse> {
        let RepositoryModelUnloadRequest { model_name, parameters, .. } = request.into_inner();
        let unloaded = match self.refuse_control("parameters", parameters.keys()) {
            Ok(()) => self.0.unload(model_name).await,
            Err(failure) => Err(failure),
        };
        reply(unloaded.map(|()| RepositoryModelUnloadResponse {}))
    }
}
