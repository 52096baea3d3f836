//! Ways to write calls, for tests.

use opara_models::decoder::{CallForm, CallId, CallSyntax};

pub(crate) fn syntax(open: &str, between: Option<&str>, close: &str, form: CallForm) -> CallSyntax {
    CallSyntax { open: open.into(), between: between.map(str::to_owned), close: close.into(), form }
}

pub(crate) fn object_form(arguments: &str) -> CallForm {
    CallForm::Object { id: None, name: "name".into(), arguments: arguments.into() }
}

pub(crate) fn tagged() -> CallSyntax {
    let between = Some("\n</tool_call>\n<tool_call>\n");
    syntax("<tool_call>\n", between, "\n</tool_call>", object_form("arguments"))
}

pub(crate) fn lone() -> CallSyntax {
    syntax("", None, "", object_form("parameters"))
}

pub(crate) fn marked() -> CallSyntax {
    let form = CallForm::Marked {
        first: ">\n<parameter=".into(),
        assign: ">\n".into(),
        next: "\n</parameter>\n<parameter=".into(),
        empty: ">\n</function>\n</tool_call>".into(),
    };
    let between = "\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=";
    syntax("<tool_call>\n<function=", Some(between), "\n</parameter>\n</function>\n</tool_call>", form)
}

pub(crate) fn quoted() -> CallSyntax {
    let form = CallForm::Quoted { open: "{".into(), quote: "<|\"|>".into() };
    syntax("<call>call:", Some("</call><call>call:"), "</call>", form)
}

/// With ids that the name is part of.
pub(crate) fn identified() -> CallSyntax {
    let form = CallForm::Named { id: CallId::Naming, middle: "<args>".into() };
    syntax("<calls><call>", Some("</call><call>"), "</call></calls>", form)
}

/// With numbers behind the names.
pub(crate) fn numbered() -> CallSyntax {
    let form = CallForm::Named { id: CallId::Number(":".into()), middle: "<args>".into() };
    syntax("<calls><call>functions.", Some("</call><call>functions."), "</call></calls>", form)
}

/// With an id as the first field.
pub(crate) fn acted() -> CallSyntax {
    let form = CallForm::Object { id: Some("id".into()), name: "tool_name".into(), arguments: "parameters".into() };
    syntax("<action>[\n    ", Some(",\n    "), "\n]</action>", form)
}
