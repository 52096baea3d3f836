//! Words of a format: names in sound inputs, and some that these lack.

use std::collections::BTreeSet;

/// The most words.
const MOST: usize = 600;

/// Words that sound inputs lack.
const OTHERS: [(&str, &[&str]); 4] = [
    (
        "pickle",
        &[
            "_rebuild_tensor_v3",
            "torch._tensor\n_rebuild_from_type_v2\n",
            "_rebuild_parameter",
            "UntypedStorage",
            "HalfStorage",
        ],
    ),
    (
        "request",
        &[
            "timeout",
            "binary_data_size",
            "shared_memory_region",
            "classification",
            "documents",
            "reasoning_effort",
            "image_url",
        ],
    ),
    (
        "tokenizer",
        &[
            "ByteLevel",
            "Metaspace",
            "Precompiled",
            "FixedLength",
            "UnicodeScripts",
            "Unigram",
            "TemplateProcessing",
            "Regex",
        ],
    ),
    (
        "template",
        &[
            "{% macro m(x) %}",
            "{% endmacro %}",
            "{% set x = ",
            "range(100000)",
            "loop.cycle",
            "namespace(",
            "|groupby(",
            "*9999999",
        ],
    ),
];

/// The words of a target whose sound inputs these are.
pub fn of(target: &str, seeds: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let is_of_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.|".contains(byte);
    let names = seeds.iter().flat_map(|seed| seed.split(|byte| !is_of_word(byte))).map(<[u8]>::to_vec);
    let words: BTreeSet<Vec<u8>> = names.filter(|name| (2..40).contains(&name.len())).collect();
    let others = OTHERS.iter().filter(|(of, _)| *of == target).flat_map(|(_, words)| *words);
    let common = ["null", "true", "false", "[]", "{}", "\"\"", "%%b\n", "-1", "1e300"];
    let all = others.chain(&common).map(|word| word.as_bytes().to_vec());
    all.chain(words).take(MOST).collect()
}

/// A dictionary of libFuzzer.
pub fn dictionary(words: &[Vec<u8>]) -> String {
    let line = |word: &Vec<u8>| {
        let hex: String = word.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        format!("\"{hex}\"\n")
    };
    words.iter().map(line).collect()
}
