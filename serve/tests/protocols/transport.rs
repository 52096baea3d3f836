//! Around the requests: encoded bodies, pages of other origins, and gRPC's services for health and reflection.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use axum::body::Body;
use axum::http::{header, Method, Request};
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use flate2::Compression;
use opara_serve::pb::grpc_inference_service_client::GrpcInferenceServiceClient;
use opara_serve::server::Settings;
use serde_json::{json, Value};
use tokio_stream::StreamExt;
use tonic::codec::CompressionEncoding;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::HealthCheckRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::ServerReflectionRequest;

use super::grpc::text_request;
use super::{post, send, setup, small, INFER};

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

fn deflate(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

fn encoded(path: &str, encoding: &str, body: Vec<u8>) -> Result<Request<Body>> {
    Ok(Request::post(path).header(header::CONTENT_ENCODING, encoding).body(body.into())?)
}

#[tokio::test]
async fn bodies_may_be_encoded_and_limits_hold_for_what_they_stand_for() -> Result<()> {
    let setup = setup(small())?;
    let embed = json!({"model": "bert", "input": "a cat sleeps"}).to_string();
    let infer =
        json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a cat sleeps"]}]}).to_string();
    for (path, body) in [("/v1/embeddings", embed), (INFER, infer)] {
        let plain = post(&setup.router, path, body.clone()).await?.json()?;
        for (encoding, bytes) in [("gzip", gzip(body.as_bytes())?), ("deflate", deflate(body.as_bytes())?)] {
            let reply = send(&setup.router, encoded(path, encoding, bytes.clone())?).await?;
            assert_eq!(reply.json()?, plain, "{path} {encoding}");
            let broken = send(&setup.router, encoded(path, encoding, bytes[..bytes.len() - 6].to_vec())?).await?;
            assert_eq!(broken.status.as_u16(), 400, "{path} {encoding}");
            assert!(String::from_utf8_lossy(&broken.body).contains("content-encoding"), "{encoding}");
            let mut asked = encoded(path, encoding, bytes)?;
            asked.headers_mut().insert(header::ACCEPT_ENCODING, encoding.parse()?);
            let reply = send(&setup.router, asked).await?;
            assert_eq!(reply.headers[header::CONTENT_ENCODING], encoding);
            let mut told = Vec::new();
            match encoding {
                "gzip" => GzDecoder::new(reply.body.as_slice()).read_to_end(&mut told)?,
                _ => ZlibDecoder::new(reply.body.as_slice()).read_to_end(&mut told)?,
            };
            assert_eq!(serde_json::from_slice::<Value>(&told)?, plain, "{path} {encoding}");
        }
        // 64 MiB in some 64 KiB, of which no more than the limit is expanded: a body of 4 KiB is taken.
        for (encoding, bomb) in [("gzip", gzip(&vec![b' '; 64 << 20])?), ("deflate", deflate(&vec![b' '; 1 << 20])?)] {
            let reply = send(&setup.router, encoded(path, encoding, bomb)?).await?;
            assert_eq!(reply.status.as_u16(), 413, "{path} {encoding}");
            assert!(reply.json()?["error"].is_object() || reply.json()?["error"].is_string());
        }
        let reply = send(&setup.router, encoded(path, "br", vec![1, 2, 3])?).await?;
        assert_eq!(reply.status.as_u16(), 415);
        assert!(String::from_utf8_lossy(&reply.body).contains("br"));
    }
    Ok(())
}

#[tokio::test]
async fn messages_of_grpc_may_be_encoded_within_the_same_limits() -> Result<()> {
    let setup = setup(small())?;
    let plain =
        GrpcInferenceServiceClient::new(setup.router.clone()).model_infer(text_request(&["a"])).await?.into_inner();
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let client = GrpcInferenceServiceClient::new(setup.router.clone());
        let mut client = client.send_compressed(encoding).accept_compressed(encoding);
        let reply = client.model_infer(text_request(&["a"])).await?;
        assert!(reply.metadata().contains_key("grpc-encoding"), "{:?}", reply.metadata());
        assert_eq!(reply.into_inner(), plain);
        let bomb = "a".repeat(1 << 20);
        let status = client.model_infer(text_request(&[&bomb])).await.err().context("it is too large")?;
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        let replies =
            client.model_stream_infer(tokio_stream::iter([text_request(&["a"]), text_request(&["a"])])).await?;
        let replies: Vec<_> = replies.into_inner().collect::<Result<_, _>>().await?;
        assert!(replies.iter().all(|reply| reply.infer_response.as_ref() == Some(&plain)) && replies.len() == 2);
    }
    Ok(())
}

#[tokio::test]
async fn pages_of_other_origins_may_ask_where_the_operator_lets_them() -> Result<()> {
    let preflight = |origin: &str| {
        let request = Request::builder().method(Method::OPTIONS).uri("/v1/embeddings").header(header::ORIGIN, origin);
        let request = request.header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST");
        request.header(header::ACCESS_CONTROL_REQUEST_HEADERS, "authorization,content-type").body(Body::empty())
    };
    let none = setup(small())?;
    let reply = send(&none.router, preflight("https://a.example")?).await?;
    assert!(!reply.headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
    let folder = tempfile::tempdir()?;
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "first\n")?;
    // A browser asks for leave without the key.
    let some = setup(Settings { cors_origin: vec!["https://a.example".into()], api_keys: Some(keys), ..small() })?;
    let reply = send(&some.router, preflight("https://a.example")?).await?;
    assert!(reply.status.is_success());
    assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
    assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_HEADERS], "authorization,content-type");
    let reply = send(&some.router, preflight("https://b.example")?).await?;
    assert!(!reply.headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
    let request = Request::post("/v1/embeddings").header(header::ORIGIN, "https://a.example").body(Body::from("{}"))?;
    let refused = send(&some.router, request).await?;
    assert_eq!(refused.status.as_u16(), 401);
    assert_eq!(refused.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example", "so that a page sees why");
    let all = setup(Settings { cors_origin: vec!["*".into()], ..small() })?;
    let reply = send(&all.router, preflight("https://c.example")?).await?;
    assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "*");
    Ok(())
}

#[tokio::test]
async fn grpc_tells_health_and_describes_itself() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "first\n")?;
    let setup = setup(Settings { api_keys: Some(keys), ..small() })?;
    let mut health = HealthClient::new(setup.router.clone());
    let of = |service: &str| HealthCheckRequest { service: service.into() };
    for (service, expected) in [
        // The other model is broken.
        ("", ServingStatus::NotServing),
        ("inference.GRPCInferenceService", ServingStatus::NotServing),
        ("bert", ServingStatus::Serving),
        ("broken", ServingStatus::NotServing),
    ] {
        assert_eq!(health.check(of(service)).await?.into_inner().status(), expected, "{service:?}");
    }
    assert_eq!(health.check(of("other")).await.err().context("it is unknown")?.code(), Code::NotFound);
    let mut watched = health.watch(of("bert")).await?.into_inner();
    assert_eq!(watched.message().await?.context("a state")?.status(), ServingStatus::Serving);
    setup.service.models.unload("bert").map_err(|failure| anyhow::anyhow!(failure.message))?;
    assert_eq!(watched.message().await?.context("a state")?.status(), ServingStatus::NotServing);

    let mut reflection = ServerReflectionClient::new(setup.router.clone());
    let asks = [
        MessageRequest::ListServices(String::new()),
        MessageRequest::FileContainingSymbol("inference.GRPCInferenceService".into()),
    ];
    let asks = asks.map(|ask| ServerReflectionRequest { host: String::new(), message_request: Some(ask) });
    let status =
        reflection.server_reflection_info(tokio_stream::iter(asks.clone())).await.err().context("there is no key")?;
    assert_eq!(status.code(), Code::Unauthenticated);
    let mut request = tonic::Request::new(tokio_stream::iter(asks));
    request.metadata_mut().insert("authorization", "Bearer first".parse()?);
    let told: Vec<_> = reflection.server_reflection_info(request).await?.into_inner().collect::<Result<_, _>>().await?;
    let Some(MessageResponse::ListServicesResponse(list)) = &told[0].message_response else {
        anyhow::bail!("{told:?}")
    };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["grpc.health.v1.Health", "inference.GRPCInferenceService"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(matches!(told[1].message_response, Some(MessageResponse::FileDescriptorResponse(_))), "{told:?}");
    Ok(())
}
