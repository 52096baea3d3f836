//! Keys and values that several heads of queries share.

use super::*;

/// How keys and values come to be as many as the heads of queries are.
#[derive(Clone, Copy)]
enum Repeat {
    /// Each head's run beside itself.
    Beside,
    /// All tokens of all heads below themselves, and then in the order of heads.
    Below,
    /// A copy of a view in which they repeat.
    View,
    /// All heads beside themselves: the first and the third head of queries share the first.
    Wrong,
}

/// Attention of 4 heads of 32 for 6 tokens, of which two each share keys and values.
fn grouped_attention(keys: Repeat, values: Repeat) -> Trace {
    let mut maker = Maker::default();
    let q = maker.buffer(4 * 192, Role::Input(0));
    let [k, v] = [(1, keys), (2, values)].map(|(input, repeat)| {
        let x = maker.buffer(2 * 192, Role::Input(input));
        let cat = |maker: &mut Maker, from: View, to: &dyn Fn(BufferId, u64) -> View| {
            let y = maker.buffer(4 * 192, Role::Intermediate);
            (0..2).for_each(|copy| maker.op(Function::Copy, vec![from.clone()], to(y, copy)));
            y
        };
        match repeat {
            Repeat::Beside => cat(&mut maker, view(x, 0, &[(2, 192), (192, 1)]), &|y, copy| {
                view(y, copy * 192, &[(2, 384), (192, 1)])
            }),
            Repeat::Below => {
                let y = cat(&mut maker, all(x, 384), &|y, copy| View::contiguous(y, F16, copy * 384, 384));
                maker.made(Function::Copy, vec![view(y, 0, &[(2, 32), (12, 64), (32, 1)])], 768)
            }
            Repeat::View => maker.made(Function::Copy, vec![view(x, 0, &[(2, 192), (2, 0), (192, 1)])], 768),
            Repeat::Wrong => cat(&mut maker, all(x, 384), &|y, copy| View::contiguous(y, F16, copy * 384, 384)),
        }
    });
    let operands = vec![view(q, 0, &[(4, 192), (6, 32), (32, 1)]), view(k, 0, &[(4, 192), (32, 1), (6, 32)])];
    let scores = maker.made(Function::Matmul, operands, 144);
    let p = maker.made(Function::Softmax(6), vec![all(scores, 144)], 144);
    let operands = vec![view(p, 0, &[(4, 36), (6, 6), (6, 1)]), view(v, 0, &[(4, 192), (6, 32), (32, 1)])];
    let y = maker.made(Function::Matmul, operands, 768);
    maker.output(y);
    maker.0
}

#[test]
fn attention_reads_shared_heads_where_they_were_before() {
    let (by_head, by_token) = ([(2, 192), (6, 32), (32, 1)], [(2, 32), (6, 64), (32, 1)]);
    for (keys, values, saved, expected) in
        [(Repeat::Beside, Repeat::Below, 5, [by_head, by_token]), (Repeat::View, Repeat::Beside, 3, [by_head, by_head])]
    {
        let mut graph = regions(&grouped_attention(keys, values))[0].graph.clone();
        assert_eq!(apply(&mut graph, &[])[1], ("grouped-heads", Applied { times: 1, saved }));
        let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
        let node = &graph.nodes[at];
        assert_eq!(node.compute, Compute::Attention(Scores::of(1.)));
        let dims = |at: usize| node.operands[at].dims.iter().map(|dim| (dim.len, dim.stride)).collect::<Vec<_>>();
        assert_eq!([dims(1), dims(2)], expected.map(Vec::from));
        assert_eq!(graph.live().iter().filter(|live| **live).count(), 1);
    }
}

#[test]
fn heads_in_another_order_stay_copies() {
    for (keys, values) in [(Repeat::Wrong, Repeat::Beside), (Repeat::Beside, Repeat::Wrong)] {
        let mut graph = regions(&grouped_attention(keys, values))[0].graph.clone();
        assert_eq!(apply(&mut graph, &[]).into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["attention"]);
    }
}

#[test]
fn copies_that_are_read_elsewhere_are_not_saved() {
    let mut trace = grouped_attention(Repeat::Beside, Repeat::View);
    // The concatenated keys.
    trace.buffers[2].role = Role::Output(1);
    let mut graph = regions(&trace)[0].graph.clone();
    assert_eq!(apply(&mut graph, &[])[1], ("grouped-heads", Applied { times: 1, saved: 1 }));
}

/// Attention of 2 heads of 32 for 6 tokens whose keys are scaled before the product, in the order of it; and the scaled keys.
fn attention_of_scaled_keys() -> (Trace, BufferId) {
    let mut maker = Maker::default();
    let [q, k, v] = [0, 1, 2].map(|input| maker.buffer(384, Role::Input(input)));
    let heads = |buffer| view(buffer, 0, &[(2, 192), (6, 32), (32, 1)]);
    let columns = view(k, 0, &[(2, 192), (32, 1), (6, 32)]);
    let k = maker.made(Function::Affine(0.25, 0.), vec![columns], 384);
    let keys = view(k, 0, &[(2, 192), (32, 6), (6, 1)]);
    let scores = maker.made(Function::Matmul, vec![heads(q), keys], 72);
    let p = maker.made(Function::Softmax(6), vec![all(scores, 72)], 72);
    let y = maker.made(Function::Matmul, vec![view(p, 0, &[(2, 36), (6, 6), (6, 1)]), heads(v)], 384);
    maker.output(y);
    (maker.0, k)
}

#[test]
fn a_factor_of_keys_is_one_of_scores() {
    let (mut trace, scaled) = attention_of_scaled_keys();
    for (is_read_elsewhere, scale, saved, dims) in
        [(false, 0.25, 3, [(2, 192), (6, 32), (32, 1)]), (true, 1., 2, [(2, 192), (6, 1), (32, 6)])]
    {
        if is_read_elsewhere {
            trace.buffers[scaled].role = Role::Output(1);
        }
        let mut graph = regions(&trace)[0].graph.clone();
        graph.outputs.sort_by_key(|output| std::cmp::Reverse(output.buffer));
        assert_eq!(apply(&mut graph, &[])[0], ("attention", Applied { times: 1, saved }));
        let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
        let node = &graph.nodes[at];
        assert_eq!(node.compute, Compute::Attention(Scores::of(scale)));
        assert_eq!(node.operands[1].dims.iter().map(|dim| (dim.len, dim.stride)).collect::<Vec<_>>(), dims);
    }
}

/// Attention of 2 heads of `size` for 6 tokens in f32, between conversions from f16 and back.
fn attention_between_conversions(size: u64) -> Trace {
    masked_attention_between_conversions(size, None)
}

/// The same with what `bits` are where a mask of integers is not 0.
fn masked_attention_between_conversions(size: u64, bits: Option<u64>) -> Trace {
    let wide = |view: View| View { element: Element::F32, ..view };
    let mut maker = Maker::default();
    let len = 12 * size;
    let [q, k, v] = [0, 1, 2].map(|input| {
        let x = maker.buffer(len, Role::Input(input));
        // From the order of tokens to that of heads.
        let heads = view(x, 0, &[(2, size), (6, 2 * size), (size, 1)]);
        let buffer = maker.buffer(2 * len, Role::Intermediate);
        maker.op(Function::Copy, vec![heads], wide(all(buffer, len)));
        buffer
    });
    let in_f32 = |maker: &mut Maker, function, reads: Vec<View>, len: u64| {
        let buffer = maker.buffer(2 * len, Role::Intermediate);
        maker.op(function, reads.into_iter().map(wide).collect(), wide(all(buffer, len)));
        buffer
    };
    let heads = |buffer| view(buffer, 0, &[(2, 6 * size), (6, size), (size, 1)]);
    let columns = view(k, 0, &[(2, 6 * size), (size, 1), (6, size)]);
    let scaled = in_f32(&mut maker, Function::Affine(0.25, 0.), vec![columns], len);
    let keys = view(scaled, 0, &[(2, 6 * size), (size, 6), (6, 1)]);
    let scores = in_f32(&mut maker, Function::Matmul, vec![heads(q), keys], 72);
    let scores = match bits {
        Some(bits) => {
            let mask = maker.weight(18);
            let mask = View { element: Element::U8, ..view(mask, 0, &[(2, 0), (36, 1)]) };
            let buffer = maker.buffer(144, Role::Intermediate);
            maker.op(Function::MaskedFill(bits), vec![mask, wide(all(scores, 72))], wide(all(buffer, 72)));
            buffer
        }
        None => scores,
    };
    let p = in_f32(&mut maker, Function::Softmax(6), vec![all(scores, 72)], 72);
    let y = in_f32(&mut maker, Function::Matmul, vec![view(p, 0, &[(2, 36), (6, 6), (6, 1)]), heads(v)], len);
    let y = maker.made(Function::Copy, vec![wide(all(y, len))], len);
    maker.output(y);
    maker.0
}

#[test]
fn attention_in_f32_reads_and_writes_16_bits() {
    for size in [40, 160] {
        let mut graph = regions(&attention_between_conversions(size))[0].graph.clone();
        let found = apply(&mut graph, &[]);
        assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["attention", "attention-in-f32"]);
        let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
        let node = &graph.nodes[at];
        assert_eq!(node.compute, Compute::Attention(Scores { in_f32: true, ..Scores::of(0.25) }));
        assert_eq!(node.element, F16);
        for (operand, input) in node.operands.iter().zip(0..) {
            let dims: Vec<_> = operand.dims.iter().map(|dim| (dim.len, dim.stride)).collect();
            assert_eq!((operand.value, &dims[..]), (Value::Input(input), &[(2, size), (6, 2 * size), (size, 1)][..]));
        }
    }
}

#[test]
fn what_a_mask_hides_is_part_of_attention() {
    // Rows that are hidden as a whole are means with a finite number, and NaN with minus infinity: the number is kept.
    for number in [f32::NEG_INFINITY, -1e9, f32::MIN, f32::INFINITY, 0.] {
        let trace = masked_attention_between_conversions(40, Some(number.to_bits().into()));
        let mut graph = regions(&trace)[0].graph.clone();
        let found = apply(&mut graph, &[]);
        assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["attention", "attention-in-f32"]);
        let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
        let node = &graph.nodes[at];
        let masks = vec![Mask::Filled { number, where_zero: false }];
        assert_eq!(node.compute, Compute::Attention(Scores { masks, in_f32: true, ..Scores::of(0.25) }));
        let mask = &node.operands[3];
        assert_eq!(graph.element(mask.value), Element::U8);
        assert_eq!(mask.dims.iter().map(|dim| (dim.len, dim.stride)).collect::<Vec<_>>(), [(2, 0), (36, 1)]);
    }
}

#[test]
fn attention_of_f32_stays_in_f32() {
    // Queries that were f32 before. Heads of 160 have no kernel then.
    for (size, rules) in [(40, vec!["attention", "copied-heads"]), (160, vec![])] {
        let mut trace = attention_between_conversions(size);
        trace.ops[0].meaning.as_mut().unwrap().reads[0].element = Element::F32;
        let mut graph = regions(&trace)[0].graph.clone();
        assert_eq!(apply(&mut graph, &[]).into_iter().map(|(name, _)| name).collect::<Vec<_>>(), rules);
    }
}

/// Attention of two items of 2 heads of 32 for 6 tokens, copied from one product of theirs, `first` elements behind its beginning, with
/// what is added to the scores; and the copied keys.
fn attention_of_copied_heads(first: u64, mask: &[(u64, u64)]) -> (Trace, BufferId) {
    let mut maker = Maker::default();
    let (x, mask_of) = (maker.buffer(2 * 6 * 192 + first, Role::Input(0)), maker.weight(144));
    let [q, k, v] = [0, 64, 128].map(|at| {
        let heads = view(x, first + at, &[(2, 6 * 192), (2, 32), (6, 192), (32, 1)]);
        maker.made(Function::Copy, vec![heads], 768)
    });
    let rows = |buffer| view(buffer, 0, &[(4, 192), (6, 32), (32, 1)]);
    let scores = maker.made(Function::Matmul, vec![rows(q), view(k, 0, &[(4, 192), (32, 1), (6, 32)])], 144);
    let scores = maker.made(binary("add"), vec![all(scores, 144), view(mask_of, 0, mask)], 144);
    let p = maker.made(Function::Softmax(6), vec![all(scores, 144)], 144);
    let y = maker.made(Function::Matmul, vec![view(p, 0, &[(4, 36), (6, 6), (6, 1)]), rows(v)], 768);
    maker.output(y);
    (maker.0, k)
}

#[test]
fn attention_reads_heads_where_they_were_before_they_were_copied() {
    // One mask for both items, and one for each.
    for mask in [&[(2, 0), (72, 1)][..], &[(2, 6), (12, 0), (6, 1)]] {
        let (mut trace, keys) = attention_of_copied_heads(0, mask);
        for saved in [3, 2] {
            let mut graph = regions(&trace)[0].graph.clone();
            graph.outputs.sort_by_key(|output| std::cmp::Reverse(output.buffer));
            assert_eq!(apply(&mut graph, &[])[1], ("copied-heads", Applied { times: 1, saved }));
            let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
            for (at, operand) in graph.nodes[at].operands[..3].iter().enumerate() {
                let dims: Vec<_> = operand.dims.iter().map(|dim| (dim.len, dim.stride)).collect();
                assert_eq!((operand.value, operand.first), (Value::Input(0), 64 * at as u64));
                assert_eq!(dims, [(2, 6 * 192), (2, 32), (6, 192), (32, 1)]);
            }
            // Then the keys are read elsewhere, too.
            trace.buffers[keys].role = Role::Output(1);
        }
    }
}

#[test]
fn heads_that_the_kernel_would_copy_stay_copies() {
    // Rows that begin at no multiple of 16 bytes. The mask needs no copy, if it repeats.
    for (mask, expected) in [(&[(2, 0), (72, 1)][..], true), (&[(144, 1)], false)] {
        let mut graph = regions(&attention_of_copied_heads(4, mask).0)[0].graph.clone();
        let fits = apply(&mut graph, &[]);
        assert_eq!(fits.get(1).copied(), expected.then_some(("copied-heads", Applied { times: 1, saved: 0 })));
        assert_eq!(graph.live().iter().filter(|live| **live).count(), 4);
    }
}

/// Attention of two items of 2 heads of 32 for 6 tokens, whose queries, keys and values are products of one operand, each with a bias
/// or not, copied into the order of heads; and the values before that.
fn attention_of_products(has_bias: bool) -> (Trace, BufferId) {
    let mut maker = Maker::default();
    let x = maker.buffer(12 * 16, Role::Input(0));
    let mut values = 0;
    let [q, k, v] = [0, 1, 2].map(|_| {
        let (weight, bias) = (maker.weight(64 * 16), maker.weight(64));
        let operands = vec![view(x, 0, &[(1, 0), (12, 16), (16, 1)]), view(weight, 0, &[(1, 0), (16, 1), (64, 16)])];
        values = maker.made(Function::Matmul, operands, 768);
        if has_bias {
            values = maker.made(binary("add"), vec![all(values, 768), view(bias, 0, &[(12, 0), (64, 1)])], 768);
        }
        maker.made(Function::Copy, vec![view(values, 0, &[(2, 384), (2, 32), (6, 64), (32, 1)])], 768)
    });
    let rows = |buffer| view(buffer, 0, &[(4, 192), (6, 32), (32, 1)]);
    let scores = maker.made(Function::Matmul, vec![rows(q), view(k, 0, &[(4, 192), (32, 1), (6, 32)])], 144);
    let p = maker.made(Function::Softmax(6), vec![all(scores, 144)], 144);
    let y = maker.made(Function::Matmul, vec![view(p, 0, &[(4, 36), (6, 6), (6, 1)]), rows(v)], 768);
    maker.output(y);
    (maker.0, values)
}

#[test]
fn products_that_are_read_as_heads_become_one() {
    for has_bias in [false, true] {
        let (mut trace, values) = attention_of_products(has_bias);
        for count in [3, 2] {
            let mut graph = regions(&trace)[0].graph.clone();
            graph.outputs.sort_by_key(|output| std::cmp::Reverse(output.buffer));
            let fits = apply(&mut graph, &[]);
            assert_eq!(fits.last(), Some(&("products-of-one", Applied { times: 1, saved: count - 1 })));
            let found = |node: &&Node| matches!(node.compute, Compute::ProductsOfOne { .. });
            let node = graph.nodes.iter().find(found).unwrap();
            let step = if has_bias { 3 } else { 2 };
            let others = (1..count).map(|product| product * step + step - 2).collect();
            let have_bias = vec![has_bias; count];
            assert_eq!(node.compute, Compute::ProductsOfOne { others, have_bias, tokens: 6, size: 32 });
            assert_eq!(node.operands.len(), 1 + count * if has_bias { 2 } else { 1 });
            assert_eq!(graph.live().iter().filter(|live| **live).count(), 4);
            // Then the values are read as they are, too.
            trace.buffers[values].role = Role::Output(1);
        }
    }
}

#[test]
fn products_of_different_operands_or_heads_stay_apart() {
    let products = |change: &dyn Fn(&mut Trace)| {
        let mut trace = attention_of_products(false).0;
        change(&mut trace);
        let fits = apply(&mut regions(&trace)[0].graph.clone(), &[]);
        fits.into_iter().find(|(name, _)| *name == "products-of-one").map(|(_, applied)| applied.saved)
    };
    let of_another = |trace: &mut Trace| trace.ops[0].meaning.as_mut().unwrap().reads[0].first = 1;
    assert_eq!((products(&|_| {}), products(&of_another)), (Some(2), Some(1)));
    // Without the copies that put heads beside each other, products are read as a whole.
    let as_it_is = |trace: &mut Trace| {
        for op in [1, 3, 5] {
            trace.ops[op].meaning.as_mut().unwrap().reads[0].dims = vec![Dim { len: 768, stride: 1 }];
        }
    };
    assert_eq!(products(&as_it_is), None);
}

#[test]
fn heads_without_a_kernel_in_f32_need_conversions_of_all_results() {
    // The product is an output, and in f32.
    let mut trace = attention_between_conversions(160);
    trace.ops.pop();
    let product = trace.ops.last().unwrap().meaning.as_ref().unwrap().writes.as_ref().unwrap().buffer;
    trace.buffers.last_mut().unwrap().role = Role::Intermediate;
    trace.buffers[product].role = Role::Output(0);
    assert!(apply(&mut regions(&trace)[0].graph.clone(), &[]).is_empty());
    // It is converted in another order.
    let mut trace = attention_between_conversions(160);
    let read = &mut trace.ops.last_mut().unwrap().meaning.as_mut().unwrap().reads[0];
    *read = View { element: Element::F32, ..view(read.buffer, 0, &[(6, 160), (2, 960), (160, 1)]) };
    assert!(apply(&mut regions(&trace)[0].graph.clone(), &[]).is_empty());
}
