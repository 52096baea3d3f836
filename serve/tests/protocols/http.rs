//! The Open Inference Protocol over HTTP.

use anyhow::{Context, Result};
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use opara_serve::batch::Engine;
use serde_json::{json, Value};

use super::{buckets, floats, get, one, post, send, setup, small, INFER};

#[tokio::test]
async fn texts_as_json_have_the_executors_vectors() -> Result<()> {
    let setup = setup(small())?;
    let texts = ["a cat sleeps", "ünïcödé"];
    let body = json!({"id": "7", "inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": texts}]});
    let reply = post(&setup.router, INFER, body.to_string()).await?;
    let answer = reply.json()?;
    assert_eq!((reply.status, &answer["id"], &answer["model_version"]), (StatusCode::OK, &json!("7"), &json!("1")));
    let output = &answer["outputs"][0];
    assert_eq!(output["shape"], json!([2, setup.own.width()]));
    assert_eq!(floats(&output["data"]), setup.own.embed(&texts)?.concat());
    Ok(())
}

#[tokio::test]
async fn tensors_as_bytes_go_in_and_out() -> Result<()> {
    let setup = setup(small())?;
    let (ids, mask) = ([5i64, 6, 7, 8, 9, 0], [1i64, 1, 1, 1, 1, 0]);
    let raw: Vec<u8> = ids.iter().chain(&mask).flat_map(|id| id.to_le_bytes()).collect();
    let tensor =
        |name| json!({"name": name, "shape": [2, 3], "datatype": "INT64", "parameters": {"binary_data_size": 48}});
    let head = json!({
        "inputs": [tensor("input_ids"), tensor("attention_mask")],
        "outputs": [{"name": "embedding", "parameters": {"binary_data": true}}],
    });
    let head = head.to_string();
    let body = [head.as_bytes(), &raw].concat();
    let request = Request::post(INFER).header("inference-header-content-length", head.len()).body(body.into())?;
    let reply = send(&setup.router, request).await?;
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
    let json_bytes: usize = reply.headers["inference-header-content-length"].to_str()?.parse()?;
    let head: Value = serde_json::from_slice(&reply.body[..json_bytes])?;
    assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], json!(2 * 4 * setup.own.width()));
    let got: Vec<f32> =
        reply.body[json_bytes..].chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
    let bucket = buckets().iter().find(|b| (b.batch, b.length) == (2, 16)).context("it is there")?;
    let expected = setup.own.run(bucket, &[&vec![5, 6, 7].into(), &vec![8, 9].into()])?.concat();
    assert_eq!(got, expected);
    Ok(())
}

#[tokio::test]
async fn metadata_and_health() -> Result<()> {
    let setup = setup(small())?;
    let server = get(&setup.router, "/v2").await?.json()?;
    assert_eq!(server["name"], "opara-serve");
    for path in ["/v2/models/bert", "/v2/models/bert/versions/1"] {
        let metadata = get(&setup.router, path).await?.json()?;
        assert_eq!(metadata["inputs"][0], json!({"name": "text", "datatype": "BYTES", "shape": [-1]}));
        assert_eq!(metadata["outputs"][0]["shape"], json!([-1, setup.own.width()]));
    }
    assert_eq!(get(&setup.router, "/v2/health/live").await?.json()?, json!({"live": true}));
    // The broken model was not loaded.
    assert_eq!(get(&setup.router, "/v2/health/ready").await?.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(&setup.router, "/v2/models/bert/ready").await?.status, StatusCode::OK);
    assert_eq!(get(&setup.router, "/v2/models/broken/ready").await?.status, StatusCode::SERVICE_UNAVAILABLE);
    let metrics = String::from_utf8(get(&setup.router, "/metrics").await?.body)?;
    let names = ["opara_queue_rows", "opara_stage_seconds_bucket", "opara_graphs", "opara_rechecks"];
    for name in names.into_iter().chain(["opara_busy_seconds_total", "opara_device_seconds_total"]) {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
    assert!(metrics.contains(&format!("opara_graphs{{model=\"bert\"}} {}", buckets().len())), "{metrics}");
    Ok(())
}

#[tokio::test]
async fn bad_requests_over_http_are_this_protocols_errors() -> Result<()> {
    let setup = setup(small())?;
    let text = |shape: Value, data: Value| one("text", "BYTES", shape, data);
    let deep = "[".repeat(1_000);
    let huge = json!([1u64 << 40, 1u64 << 40]);
    let with = |parameters: Value| {
        json!({"parameters": parameters, "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}).to_string()
    };
    let bad = [
        (400, String::new()),
        (400, "{".into()),
        (400, "[]".into()),
        (400, "{}".into()),
        (400, deep),
        (400, json!({"inputs": []}).to_string()),
        (400, text(json!([2]), json!(["a"]))),
        (400, text(json!([-1]), json!(["a"]))),
        (413, text(huge, json!(["a"]))),
        (400, text(json!([1, 2]), json!(["a", "b"]))),
        (400, text(json!([1.5]), json!(["a"]))),
        (400, text(json!([1]), json!([1]))),
        (400, one("text", "FP32", json!([1]), json!([1.]))),
        (400, one("text", "STRING", json!([1]), json!(["a"]))),
        (400, one("txt", "BYTES", json!([1]), json!(["a"]))),
        (400, one("input_ids", "INT64", json!([1, 1]), json!([-1]))),
        (400, one("input_ids", "INT64", json!([1, 1]), json!([100]))),
        (400, one("input_ids", "INT64", json!([1, 1]), json!([1u64 << 40]))),
        (400, one("input_ids", "INT64", json!([1, 0]), json!([]))),
        (400, one("input_ids", "INT32", json!([1, 1]), json!([1u64 << 40]))),
        (413, one("input_ids", "INT64", json!([1, 65]), json!(vec![1; 65]))),
        (413, text(json!([1]), json!(["a ".repeat(100)]))),
        (413, text(json!([9]), json!(vec!["a"; 9]))),
        (413, text(json!([1]), json!(["a".repeat(5_000)]))),
        (400, with(json!({"timeout": 0}))),
        (400, with(json!({"timeout": -5}))),
        (400, with(json!({"timeout": "x"}))),
        (504, with(json!({"timeout": 1}))),
        (400, with(json!({"binary_data_output": 3}))),
        (400, json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 8}}]}).to_string()),
        (501, json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"shared_memory_region": "x"}}]}).to_string()),
        (400, json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}], "outputs": [{"name": "x"}]}).to_string()),
    ];
    for (status, body) in bad {
        let shown: String = body.chars().take(120).collect();
        let reply = post(&setup.router, INFER, body).await?;
        assert_eq!(reply.status.as_u16(), status, "{shown}: {}", String::from_utf8_lossy(&reply.body));
        assert!(reply.json()?["error"].is_string(), "{shown}");
    }
    let good = one("text", "BYTES", json!([1]), json!(["a"]));
    let request = |path: &str, header: (&str, &str)| Request::post(path).header(header.0, header.1);
    for (status, request) in [
        (404, request("/v2/models/other/infer", ("x", "y")).body(good.clone().into())?),
        (404, request("/v2/models/bert/versions/2/infer", ("x", "y")).body(good.clone().into())?),
        (404, request("/v2/models/..%2F..%2Fetc%2Fpasswd/infer", ("x", "y")).body(good.clone().into())?),
        (503, request("/v2/models/broken/infer", ("x", "y")).body(good.clone().into())?),
        (400, request(INFER, ("inference-header-content-length", "1000")).body(good.clone().into())?),
        (400, request(INFER, ("inference-header-content-length", "-1")).body(good.clone().into())?),
        (400, request(INFER, ("inference-header-content-length", "5")).body(good.clone().into())?),
        (415, request(INFER, ("content-encoding", "br")).body(good.clone().into())?),
        (404, request("/v2/nothing", ("x", "y")).body(good.clone().into())?),
        (405, Request::builder().method(Method::DELETE).uri(INFER).body(Body::empty())?),
    ] {
        let shown = format!("{request:?}");
        let reply = send(&setup.router, request).await?;
        assert_eq!(reply.status.as_u16(), status, "{shown}: {}", String::from_utf8_lossy(&reply.body));
        assert!(reply.json()?["error"].is_string(), "{shown}");
    }
    assert_eq!(post(&setup.router, INFER, good).await?.status, StatusCode::OK, "the server lives");
    Ok(())
}

#[tokio::test]
async fn text_that_is_not_utf8_is_named() -> Result<()> {
    let setup = setup(small())?;
    let head =
        json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}}]});
    let head = head.to_string();
    let body = [head.as_bytes(), &2u32.to_le_bytes(), &[0xff, 0xfe]].concat();
    let request = Request::post(INFER).header("inference-header-content-length", head.len()).body(body.into())?;
    let reply = send(&setup.router, request).await?;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert_eq!(reply.json()?["error"], "element 0 of \"text\" is not UTF-8");
    Ok(())
}
