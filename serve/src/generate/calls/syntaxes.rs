//! Ways to write calls, for tests.

use opara_models::decoder::{CallForm, CallSyntax};

pub(crate) fn syntax(open: &str, between: Option<&str>, close: &str, form: CallForm) -> CallSyntax {
    CallSyntax { open: open.into(), between: between.map(str::to_owned), close: close.into(), form }
}

pub(crate) fn object_form(arguments: &str) -> CallForm {
    CallForm::Object { name: "name".into(), arguments: arguments.into() }
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
