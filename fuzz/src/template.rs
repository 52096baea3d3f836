//! A chat template (`a`) and the one for tools (`t`), rendered with a conversation (`m`, as JSON) and with some of our own.

use std::cell::RefCell;
use std::collections::BTreeMap;

use opara_models::decoder::{Conversation, Message, PromptEnd, Text, Value};

use crate::folder::Folder;
use crate::parts::{part, split};

thread_local! {
    static FOLDER: RefCell<Folder> = RefCell::default();
}

/// Reads an input, and says whether it could be read.
pub fn run(bytes: &[u8]) -> bool {
    let parts = split(bytes);
    let text = FOLDER.with_borrow_mut(|folder| {
        let tokenizer = folder.put("tokenizer.json", include_bytes!("../seeds/tokenizer.json"));
        folder.put("tokenizer_config.json", br#"{"bos_token": "<s>", "eos_token": "</s>"}"#);
        folder.put("chat_template.jinja", part(&parts, b'a').unwrap_or_default());
        folder.set("additional_chat_templates/tool_use.jinja", part(&parts, b't'));
        Text::beside(&tokenizer)
    });
    text.is_ok_and(|text| render(&text, part(&parts, b'm')))
}

/// Renders conversations, and says whether one could be. A prompt that was written can be encoded.
pub fn render(text: &Text, messages: Option<&[u8]>) -> bool {
    let own = messages.and_then(|json| serde_json::from_slice::<Vec<Message>>(json).ok());
    let said = || ["system", "user"].map(|role| Message::new(role, "hello")).to_vec();
    let tools = r#"[{"type": "function", "function": {"name": "f", "description": "d", "parameters":
        {"type": "object", "properties": {"x": {"type": "string", "enum": ["a"]}}, "required": ["x"]}}}]"#;
    let tools = serde_json::from_str::<Value>(tools).expect("JSON");
    let names = BTreeMap::from([("tools".to_owned(), tools), ("enable_thinking".to_owned(), Value::from(false))]);
    let conversations = [
        Conversation { messages: own.clone().unwrap_or_else(said), ..Conversation::default() },
        Conversation { messages: own.unwrap_or_else(said), names, end: PromptEnd::Turn },
        Conversation { messages: said(), names: BTreeMap::new(), end: PromptEnd::Content },
    ];
    let mut is_written = false;
    for conversation in conversations {
        if let Ok(prompt) = text.prompt(&conversation) {
            is_written = true;
            let _ = text.encode_prompt(&prompt);
        }
    }
    is_written
}
