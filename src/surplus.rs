//! Tensors of a checkpoint that a model does not use.

/// The maximal number of named parts; the others are only counted.
const NAMED: usize = 6;

/// Lists the parts of a checkpoint that a model does not use, with their numbers of tensors; `None` if it uses all. A
/// part is a name up to its first number, such as `encoder.layer.4`, or its first word. Buffers that only serve
/// training or that each model computes itself are ignored.
pub(crate) fn unused(names: &[String]) -> Option<String> {
    let is_weight = |name: &&String| !name.ends_with("num_batches_tracked") && !name.ends_with("position_ids");
    let mut parts: Vec<(&str, usize)> = Vec::new();
    for name in names.iter().filter(is_weight) {
        match parts.iter_mut().find(|(part, _)| *part == part_of(name)) {
            Some((_, count)) => *count += 1,
            None => parts.push((part_of(name), 1)),
        }
    }
    let total: usize = parts.iter().map(|(_, count)| count).sum();
    let mut named: Vec<String> = parts.iter().take(NAMED).map(|(part, count)| format!("{part} ({count})")).collect();
    if parts.len() > NAMED {
        named.push(format!("and {} other parts", parts.len() - NAMED));
    }
    (total > 0).then(|| format!("the model does not use {total} tensors of the checkpoint: {}", named.join(", ")))
}

fn part_of(name: &str) -> &str {
    let ends = || name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
    let is_number = |end: &usize| {
        let last = name[..*end].rsplit('.').next().unwrap_or_default();
        !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit())
    };
    &name[..ends().find(is_number).or_else(|| ends().next()).unwrap_or(name.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_parts_are_named() {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let of_bert = ["encoder.layer.10.b", "encoder.layer.10.w", "encoder.layer.11.w", "pooler.dense.weight"];
        assert_eq!(
            unused(&names(&of_bert)).unwrap(),
            "the model does not use 4 tensors of the checkpoint: encoder.layer.10 (2), encoder.layer.11 (1), pooler (1)"
        );
        let many: Vec<String> = (0..9).map(|layer| format!("layer.{layer}.w")).collect();
        assert!(unused(&many).unwrap().ends_with("layer.5 (1), and 3 other parts"));
        assert_eq!(unused(&names(&["bn.num_batches_tracked", "embeddings.position_ids"])), None);
        assert_eq!(unused(&[]), None);
    }
}
