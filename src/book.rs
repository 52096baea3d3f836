//! Compiles and runs the Rust code of the README and the book as doctests: `cargo test --release --doc -p
//! opara-examples`. `tests/book.rs` checks that every page with code is listed here.

macro_rules! pages {
    ($($name:ident $path:literal)*) => {$(
        #[doc = include_str!(concat!("../", $path))]
        pub struct $name;
    )*};
}

pages! {
    Readme "README.md"
    Tutorial "docs/tutorial.md"
    Inputs "docs/howto/inputs.md"
    NotSend "docs/howto/not-send.md"
    Shapes "docs/howto/shapes.md"
    Weights "docs/howto/weights.md"
    Training "docs/howto/training.md"
    Generation "docs/howto/generation.md"
    Serving "docs/howto/serving.md"
    State "docs/howto/state.md"
    Threads "docs/howto/threads.md"
    Gpus "docs/howto/gpus.md"
    Deployment "docs/howto/deployment.md"
    Eager "docs/howto/eager.md"
    Operators "docs/howto/operators.md"
    Scheduler "docs/howto/scheduler.md"
    Schedules "docs/concepts/schedules.md"
    Rewriting "docs/concepts/rewriting.md"
    Errors "docs/errors.md"
}
