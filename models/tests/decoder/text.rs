//! Prompts, chat templates, and characters that come token by token.

use opara_models::decoder::{Message, Pieces, Text};

use super::*;

const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [
    {"id": 3, "content": "<s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
    "model": {"type": "WordLevel", "vocab": {"user": 0, "hello": 1, "there": 2, "<s>": 3, "[?]": 4}, "unk_token": "[?]"},
    "pre_tokenizer": {"type": "Whitespace"}}"#;

fn said_by_user(content: &str) -> Vec<Message> {
    vec![Message { role: "user".into(), content: content.into() }]
}

#[test]
fn templates_are_found_and_rendered() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    assert!(told(Text::beside(&path)).contains("tokenizer.json is missing"));
    std::fs::write(&path, TOKENIZER)?;
    let plain = Text::beside(&path).expect("a tokenizer");
    assert!(told(plain.encode_chat(&said_by_user("hello"))).contains("no chat template"));
    let template = "{{ bos_token }} {% for m in messages %}\n{% if m['role'].startswith('x') %}\
                    {{ raise_exception('who?') }}{% endif %}{{ m.role }} {{ m.content.strip() }}{% endfor %}";
    let settings = serde_json::json!({"bos_token": {"content": "<s>"}, "chat_template": template});
    std::fs::write(folder.path().join("tokenizer_config.json"), settings.to_string())?;
    let text = Text::beside(&path).expect("a tokenizer");
    assert_eq!(text.encode_chat(&said_by_user(" hello there ")).expect("tokens"), [3, 0, 1, 2]);
    let strange = [Message { role: "xenon".into(), content: String::new() }];
    assert!(told(text.encode_chat(&strange)).contains("who?"));
    std::fs::write(folder.path().join("chat_template.jinja"), "there")?;
    assert_eq!(Text::beside(&path).expect("a tokenizer").encode_chat(&said_by_user("hello")).expect("tokens"), [2]);
    std::fs::write(folder.path().join("chat_template.jinja"), "{% for %}")?;
    assert!(told(Text::beside(&path)).contains("template"));
    let mut pieces = text.pieces();
    let piece = [1, 2].map(|token| pieces(token).expect("a piece")).concat();
    assert_eq!(piece, "hello there");
    Ok(())
}

#[test]
fn characters_come_whole_and_nothing_is_lost() {
    let text = Text::of_bytes().expect("a tokenizer");
    let said = "a\u{e9} \n\u{4e16}\u{1f600}z";
    let tokens = text.encode(said).expect("tokens");
    assert_eq!(tokens, said.bytes().map(u32::from).collect::<Vec<_>>());
    let mut held = Pieces::default();
    let pieces: Vec<String> = tokens.iter().map(|token| text.piece(&mut held, *token).expect("a piece")).collect();
    let whole: Vec<&str> = pieces.iter().map(String::as_str).filter(|piece| !piece.is_empty()).collect();
    assert_eq!(whole, ["a", "\u{e9}", " ", "\n", "\u{4e16}", "\u{1f600}", "z"]);
    assert_eq!(text.rest(&held).expect("a rest"), "");
    assert_eq!(text.encode_chat(&said_by_user("hi")).expect("tokens"), b"user: hi\nassistant:".map(u32::from));
    // Bytes of no text, and one that ends within a character.
    for bytes in
        [&[0xff, 0xfe, 65, 0x80, 0x80, 66][..], &[0xe4, 0xb8], &[65, 0xf0, 0x9f, 0x98], &[0xf0, 0x9f, 65, 0xc3]]
    {
        let (mut held, mut told) = (Pieces::default(), String::new());
        for byte in bytes {
            told += &text.piece(&mut held, *byte).expect("a piece");
        }
        told += &text.rest(&held).expect("a rest");
        assert_eq!(told, text.decode(bytes).expect("a text"), "{bytes:?}");
        assert_eq!(told, String::from_utf8_lossy(&bytes.iter().map(|byte| *byte as u8).collect::<Vec<_>>()));
    }
}
