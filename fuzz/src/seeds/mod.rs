//! Sound inputs that each target begins with.

mod gguf;
mod requests;
pub(crate) mod sentences;
mod texts;
pub mod words;

use crate::parts::join;
use crate::trace;

/// The sound inputs of a target.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "config" => texts::CONFIGS.iter().map(|config| join(&[(b'a', config), (b'b', texts::GENERATION)])).collect(),
        "gguf" => gguf::files(),
        "pickle" => pickles(),
        "request" => requests::all(),
        "safetensors" => safetensors(),
        "sentences" => folders(),
        "template" => texts::templates(),
        "tokenizer" => texts::tokenizers(),
        "trace" => TRACES.iter().flat_map(|file| [behind(0, file), trace::sections(file)]).collect(),
        _ => Vec::new(),
    }
}

/// An input whose first byte is a choice.
fn behind(first: u8, rest: &[u8]) -> Vec<u8> {
    [&[first], rest].concat()
}

fn pickles() -> Vec<Vec<u8>> {
    let older = include_bytes!("../../../weights/tests/data/older.pth");
    vec![
        behind(0, include_bytes!("../../../weights/tests/data/zip.pth")),
        behind(0, include_bytes!("../../../weights/tests/data/zip-protocol-4.pth")),
        behind(0, include_bytes!("../../../weights/tests/data/training.pth")),
        behind(0, older),
        behind(2, older.strip_prefix(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.").unwrap_or(older)),
        behind(1, PICKLE),
    ]
}

fn safetensors() -> Vec<Vec<u8>> {
    let (one, two) = (texts::FLOATS, texts::SCALES);
    let mut inputs = vec![include_bytes!("../../../weights/tests/data/same.safetensors").to_vec()];
    for config in texts::QUANTIZATIONS {
        inputs.push(join(&[(b'A', one), (b'B', two), (b'i', texts::INDEX), (b'c', config)]));
    }
    inputs.push(join(&[(b'A', texts::ALL_TYPES)]));
    inputs
}

fn folders() -> Vec<Vec<u8>> {
    let sound = sentences::files();
    let part = |name: &str| sound.iter().find(|(of, _)| *of == name).map(|(_, bytes)| bytes.as_slice());
    let of_file = |(letter, name): &(u8, &str)| Some(join(&[(*letter, part(name)?)]));
    let mut inputs: Vec<_> = crate::sentences::FILES.iter().filter_map(of_file).collect();
    // Without a list of modules.
    inputs.push(join(&b"mpdwlvnkbs".map(|letter| (letter, &b""[..]))));
    for tokenizer in
        [include_bytes!("../../seeds/unigram.json").as_slice(), include_bytes!("../../seeds/wordlevel.json")]
    {
        inputs.push(join(&[(b't', tokenizer)]));
    }
    inputs.extend(texts::POOLINGS.iter().map(|pooling| join(&[(b'p', pooling)])));
    inputs
}

/// Traces with all kinds of sections, of few bytes.
const TRACES: [&[u8]; 6] = [
    include_bytes!("../../../opara-candle/plan/tests/data/version-1.trace"),
    include_bytes!("../../../tests/data/distilbert-f32.trace"),
    include_bytes!("../../../tests/data/t5-small-encoder-f16.trace"),
    include_bytes!("../../../tests/data/native-deepfm-f16.trace"),
    include_bytes!("../../../tests/data/mamba-130m-token-f16.trace"),
    include_bytes!("../../../tests/data/resnet18-f16.trace"),
];

/// A pickle of one tensor, `{"w": torch.FloatTensor of 4 by 4 in storage 0}`, in protocol 2.
const PICKLE: &[u8] = b"\x80\x02}q\x00X\x01\x00\x00\x00wq\x01ctorch._utils\n_rebuild_tensor_v2\nq\x02((X\x07\x00\x00\x00storageq\x03ctorch\nFloatStorage\nq\x04X\x01\x00\x00\x000q\x05X\x03\x00\x00\x00cpuq\x06K\x10tq\x07QK\x00K\x04K\x04\x86q\x08K\x04K\x01\x86q\t\x89ccollections\nOrderedDict\nq\n)Rq\x0btq\x0cRq\rs.";
