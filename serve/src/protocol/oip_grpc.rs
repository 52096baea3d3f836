//! The Open Inference Protocol over gRPC.

use std::pin::Pin;

use bytes::Bytes;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::batch::Stage;
use crate::model::{self, Datatype, Failure, Kind, Result, State, Tensor, Values};
use crate::pb::grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer};
use crate::pb::infer_parameter::ParameterChoice;
use crate::pb::model_infer_request::InferInputTensor;
use crate::pb::model_infer_response::InferOutputTensor;
use crate::pb::model_metadata_response::TensorMetadata;
use crate::pb::repository_index_response::ModelIndex;
use crate::pb::*;

use super::service::{Client, Service};
use super::{raw, EXTENSIONS, MODEL_VERSION, NAME, VERSION};

const PROTOCOL: &str = "oip_grpc";

/// The service as part of a server.
pub fn service(service: Service) -> GrpcInferenceServiceServer<Grpc> {
    let limit = service.limits.body_bytes;
    GrpcInferenceServiceServer::new(Grpc(service))
        .max_decoding_message_size(limit)
        .max_encoding_message_size(usize::MAX)
}

/// The service's calls.
pub struct Grpc(Service);

impl Grpc {
    async fn infer(&self, request: ModelInferRequest, client: Option<Client>) -> Result<ModelInferResponse> {
        let ModelInferRequest { model_name, model_version, id, parameters, inputs, outputs, raw_input_contents } =
            request;
        self.0.model(&model_name, &model_version)?;
        let metrics = self.0.registry.model(&model_name);
        let timeout = parameters.get("timeout").map(timeout).transpose()?;
        let context = self.0.context(client.as_ref(), timeout)?;
        let limit = self.0.limits.body_bytes;
        let inputs = metrics.timed(Stage::Parse, || tensors(inputs, raw_input_contents, limit))?;
        let names: Vec<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
        let answer = self.0.infer((&model_name, &model_version), inputs, &names, context).await?;
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
    let InferInputTensor { name, datatype, shape, contents, parameters } = input;
    let datatype: Datatype = datatype.parse()?;
    if parameters.contains_key("shared_memory_region") {
        return Err(Failure::new(Kind::Unimplemented, "shared memory is not offered"));
    }
    let (shape, elements) = model::checked_shape(&name, &shape, limit)?;
    let values = match (raw, contents) {
        (Some(_), Some(_)) => {
            return Err(Failure::invalid(format!("input {name:?} has both contents and raw_input_contents")))
        }
        (Some(bytes), None) => raw::decode(&name, datatype, elements, bytes)?,
        (None, contents) => {
            let contents = contents.unwrap_or_default();
            let values = match datatype {
                Datatype::Int64 => Values::Ints(contents.int64_contents),
                Datatype::Int32 => Values::Ints(contents.int_contents.into_iter().map(i64::from).collect()),
                Datatype::Fp32 => Values::Floats(contents.fp32_contents),
                Datatype::Bytes => Values::Bytes(contents.bytes_contents),
                other => return Err(raw::unsupported(&name, other)),
            };
            if values.len() != elements {
                let message = format!("input {name:?} has {} elements, and its shape says {elements}", values.len());
                return Err(Failure::invalid(message));
            }
            values
        }
    };
    Ok(Tensor { name, datatype, shape, values })
}

fn timeout(parameter: &InferParameter) -> Result<u64> {
    let micros = match parameter.parameter_choice {
        Some(ParameterChoice::Int64Param(micros)) => u64::try_from(micros).ok(),
        Some(ParameterChoice::Uint64Param(micros)) => Some(micros),
        _ => None,
    };
    micros.ok_or_else(|| Failure::invalid("parameter \"timeout\" must be a whole number of microseconds, at least 0"))
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
        Kind::Invalid | Kind::Method | Kind::Encoding => Code::InvalidArgument,
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
            name: spec.name.into(),
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
        let client = request.extensions().get::<Client>().copied();
        let result = self.infer(request.into_inner(), client).await;
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
        let client = request.extensions().get::<Client>().copied();
        let service = self.0.clone();
        let answers = request.into_inner().then(move |request| {
            let grpc = Grpc(service.clone());
            async move {
                let result = grpc.infer(request?, client).await;
                grpc.0.count(PROTOCOL, &result);
                Ok(match result {
                    Ok(answer) => {
                        ModelStreamInferResponse { error_message: String::new(), infer_response: Some(answer) }
                    }
                    Err(failure) => ModelStreamInferResponse { error_message: failure.message, infer_response: None },
                })
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
        let loaded = self.0.load(request.into_inner().model_name).await;
        reply(loaded.map(|()| RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Reply<RepositoryModelUnloadResponse> {
        let unloaded = self.0.unload(request.into_inner().model_name).await;
        reply(unloaded.map(|()| RepositoryModelUnloadResponse {}))
    }
}
