//! Folders of sentence-transformers: the embedder computes what sentence-transformers 6 computes, or refuses the folder by the name
//! of the part that is not supported.

mod allowed;
mod folder;
mod modules;
mod numbers;
mod oracle;
mod prompts;
mod refusals;
mod requests;
mod tokens;
