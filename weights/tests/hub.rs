//! A hub repository is downloaded once and then read from the cache.
//!
//! There is only one test, because the environment variables that select the hub belong to the whole process.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use candle::{DType, Device};
use opara_weights::{Checkpoint, WeightsError};
use safetensors::tensor::{serialize, Dtype, TensorView};

/// Answers one request as the hub would, for a repository with these files.
fn answer(mut stream: TcpStream, files: &[(&str, Vec<u8>)]) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let path = request.split(' ').nth(1).unwrap_or_default();
    let mut probe = false;
    for line in lines {
        let line = line?.to_lowercase();
        probe |= line == "range: bytes=0-0";
        if line.is_empty() {
            break;
        }
    }
    let named = path.strip_prefix("/org/small/resolve/main/");
    let found = files.iter().find(|(name, _)| named == Some(name));
    let (status, body) = if path.starts_with("/api/models/org/small/") {
        let list: Vec<_> = files.iter().map(|(name, _)| serde_json::json!({ "rfilename": name })).collect();
        let info = serde_json::json!({ "sha": "c0ffee", "siblings": list });
        ("200 OK", info.to_string().into_bytes())
    } else if let Some((_, body)) = found {
        ("206 Partial Content", body.clone())
    } else {
        ("404 Not Found", Vec::new())
    };
    let sent = if probe { &body[..1] } else { &body[..] };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\
         content-range: bytes 0-{}/{}\r\nx-repo-commit: c0ffee\r\netag: \"{}\"\r\n\r\n",
        sent.len(),
        sent.len().saturating_sub(1),
        body.len(),
        named.unwrap_or("none"),
    )?;
    stream.write_all(sent)
}

#[test]
fn cached_files_take_precedence_over_the_hub() -> Result<(), Box<dyn Error>> {
    let home = tempfile::tempdir()?;
    env::set_var("HF_HOME", home.path());
    for proxy in ["http_proxy", "https_proxy", "all_proxy"] {
        env::remove_var(proxy);
        env::remove_var(proxy.to_uppercase());
    }

    let closed = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    env::set_var("HF_ENDPOINT", format!("http://{closed}"));
    let offline = Checkpoint::find("org/small").expect_err("no hub and no cache");
    assert!(matches!(&offline, WeightsError::Hub { model, .. } if model == "org/small"));
    let message = offline.to_string();
    assert!(message.contains("`org/small`") && message.contains("local folder"));

    // This server accepts connections and never sends anything.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    env::set_var("HF_ENDPOINT", format!("http://{}", silent.local_addr()?));
    env::set_var("HF_HUB_DOWNLOAD_TIMEOUT", "1");
    let unanswered = Checkpoint::find("org/small").expect_err("the hub is silent");
    assert!(matches!(&unanswered, WeightsError::HubSilent { model, seconds: 1, .. } if model == "org/small"));
    assert!(unanswered.to_string().contains("HF_HUB_DOWNLOAD_TIMEOUT"), "{unanswered}");
    env::remove_var("HF_HUB_DOWNLOAD_TIMEOUT");

    let value = 2.5f32.to_le_bytes();
    let shard = serialize([("x", TensorView::new(Dtype::F32, vec![1], &value)?)], None)?;
    let index = br#"{"weight_map": {"x": "model-00001-of-00001.safetensors"}}"#;
    let files = [
        ("config.json", b"{}".to_vec()),
        ("generation_config.json", b"{\"eos_token_id\": 3}".to_vec()),
        ("model.safetensors.index.json", index.to_vec()),
        ("model-00001-of-00001.safetensors", shard),
    ];
    let hub = TcpListener::bind("127.0.0.1:0")?;
    env::set_var("HF_ENDPOINT", format!("http://{}", hub.local_addr()?));
    thread::spawn(move || {
        for stream in hub.incoming().flatten() {
            // If a client hangs up, the test's own assertions fail.
            let _ = answer(stream, &files);
        }
    });
    let unknown = Checkpoint::find("org/unknown").expect_err("not on this hub");
    assert!(unknown.to_string().contains("`org/unknown`"));
    let downloaded = Checkpoint::find("org/small")?;

    env::set_var("HF_ENDPOINT", format!("http://{closed}"));
    let cached = Checkpoint::find("org/small")?;
    for checkpoint in [downloaded, cached] {
        assert_eq!(checkpoint.tokenizer_path(), None);
        let config = checkpoint.config_path().ok_or("a configuration")?;
        let beside = std::fs::read_to_string(config.with_file_name("generation_config.json"))?;
        assert_eq!(beside, "{\"eos_token_id\": 3}");
        let vb = checkpoint.weights(DType::F32, &Device::Cpu)?;
        assert_eq!(vb.get(1, "x")?.to_vec1::<f32>()?, [2.5]);
    }
    Ok(())
}
