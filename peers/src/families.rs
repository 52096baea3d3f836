//! What a kernel computes, from its name.

use std::collections::BTreeMap;
use std::fmt;

use self::Family::*;
use crate::results::Kernel;

/// What a kernel computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Matrix by matrix or vector, and the reductions that belong to them.
    Products,
    /// Convolutions in any form.
    Convolutions,
    /// Attention in one kernel.
    Attention,
    /// Softmax on its own.
    Softmax,
    /// Layer norm, RMS norm, batch norm.
    Normalisation,
    /// Sums, maxima and the like along a dimension.
    Reductions,
    /// One element of the result from one of each operand.
    ElementWise,
    /// Copies, fills, concatenations, transposes.
    Layout,
    /// Maxima and means over windows.
    Pools,
    /// Rows or elements by their indices.
    Lookups,
    /// What no rule knows.
    Other,
}

/// The kernels of one family in one call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Share {
    /// Launches.
    pub calls: f64,
    /// Microseconds of all of these together.
    pub us: f64,
}

/// Beginnings of candle's names, which end in a type.
const CANDLE: &[(&str, Family)] = &[
    ("ucopy_", Layout),
    ("copy2d_", Layout),
    ("conv", Convolutions),
    ("upsample_", Other),
    ("rope_", ElementWise),
    ("is_", Lookups),
    ("ia_", Lookups),
    ("sa_", Lookups),
    ("s_", Lookups),
    ("fast_", Reductions),
    ("sum_", Reductions),
    ("affine_", ElementWise),
    ("cast_", ElementWise),
    ("fill_", ElementWise),
    ("const_set_", ElementWise),
    ("where_", ElementWise),
    ("eq_", ElementWise),
    ("ne_", ElementWise),
    ("lt_", ElementWise),
    ("le_", ElementWise),
    ("gt_", ElementWise),
    ("ge_", ElementWise),
    ("badd_", ElementWise),
    ("bsub_", ElementWise),
    ("bmul_", ElementWise),
    ("bdiv_", ElementWise),
    ("bminimum_", ElementWise),
    ("bmaximum_", ElementWise),
    // All other unary ones.
    ("u", ElementWise),
];

/// Ends of candle's names.
const TYPES: &[&str] = &["f16", "bf16", "f32", "f64", "u8", "u32", "i16", "i32", "i64", "e4m3"];

/// Parts of the names, demangled or not, of cuBLAS, cuDNN, PyTorch, ONNX Runtime, candle and this library, in lower case.
/// The first that fits decides: fused attention is built from products, convolutions are written as products, and
/// conversions are no convolutions.
const PARTS: &[(Family, &[&str])] = &[
    (Attention, &["fmha", "flash_", "sdpa", "efficient_attention", "flex_attention"]),
    (Layout, &["memcpy", "memset", "upload", "nchwtonhwc", "nhwctonchw", "converttensor", "tensortransform"]),
    (
        Layout,
        &["addpadding", "im2col", "col2im", "transpose", "catarray", "concat", "opara_cat", "_heads_", "direct_copy"],
    ),
    (Layout, &["slicekernel", "splitkernel", "padkernel", "expandkernel", "space_to_depth"]),
    (ElementWise, &["convert", "op_generic_tensor", "broadcastbias", "bias_act", "opara_chain"]),
    (Convolutions, &["conv", "fprop", "dgrad", "wgrad", "winograd", "scudnn", "fft2d", "depthwise"]),
    (Pools, &["pool"]),
    (Normalisation, &["layernorm", "layer_norm", "rmsnorm", "rms_norm", "rowwisemoments"]),
    (Normalisation, &["batch_norm", "batchnorm", "bn_fw", "group_norm", "groupnorm", "instancenorm"]),
    (Softmax, &["softmax"]),
    (Products, &["gemm", "gemv", "nvjet", "cutlass", "xmma", "cublas", "splitkreduce", "dot_kernel"]),
    (Products, &["matmul", "mul_mat", "reduce_1block"]),
    (Lookups, &["gather", "scatter", "indexselect", "index_select", "index_elementwise", "index_kernel", "indexfunc"]),
    (Lookups, &["embedding", "get_rows"]),
    (Reductions, &["reduce", "reduction", "argmax", "argmin", "cumsum", "scan_"]),
    (ElementWise, &["elementwise", "element_wise", "pointwise", "gelu", "relu", "silu", "sigmoid", "tanh", "arange"]),
];

impl Family {
    /// The family of the kernel that a profiler shows as `name`.
    pub fn of(name: &str) -> Self {
        let name = name.to_lowercase();
        let by_part = || PARTS.iter().find(|(_, parts)| parts.iter().any(|part| name.contains(part)));
        Self::of_triton(&name)
            .or_else(|| Self::of_candle(&name))
            .or_else(|| by_part().map(|(family, _)| *family))
            .unwrap_or(Other)
    }

    /// Of a kernel that PyTorch's compiler wrote in Triton: its kind, then all operators that it fuses.
    fn of_triton(name: &str) -> Option<Self> {
        let (kind, operators) = name.strip_prefix("triton_")?.split_once('_')?;
        let fuses = |parts: &[&str]| parts.iter().any(|part| operators.contains(part));
        Some(match kind {
            "tem" if fuses(&["conv"]) => Convolutions,
            "tem" if fuses(&["attention"]) => Attention,
            "tem" => Products,
            _ if fuses(&["_pool"]) => Pools,
            // An RMS norm has no name of its own.
            "per" | "red" if fuses(&["_norm", "rsqrt"]) => Normalisation,
            "per" | "red" if fuses(&["softmax"]) => Softmax,
            "per" | "red" => Reductions,
            _ if fuses(&["embedding", "index", "gather"]) => Lookups,
            _ => ElementWise,
        })
    }

    fn of_candle(name: &str) -> Option<Self> {
        let typed = name.rsplit_once('_').is_some_and(|(_, last)| TYPES.contains(&last));
        let known = CANDLE.iter().filter(|_| typed).find(|(beginning, _)| name.starts_with(beginning));
        known.map(|(_, family)| *family)
    }

    /// These kernels' time and launches by family.
    pub fn shares(kernels: &[Kernel]) -> BTreeMap<Self, Share> {
        let mut shares: BTreeMap<Self, Share> = BTreeMap::new();
        for kernel in kernels {
            let share = shares.entry(Self::of(&kernel.name)).or_default();
            share.calls += kernel.calls;
            share.us += kernel.us;
        }
        shares
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Products => "matrix products",
            Convolutions => "convolutions",
            Attention => "attention, fused",
            Softmax => "softmax",
            Normalisation => "normalisation",
            Reductions => "reductions",
            ElementWise => "element-wise",
            Layout => "copies and layout",
            Pools => "pools",
            Lookups => "lookups",
            Other => "other",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_names_that_were_seen() {
        let table: &[(Family, &[&str])] = &[
            (
                Products,
                &[
                    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x128x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
                    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_64x1_tn_align2>(T1::Params)",
                    "_ZN7cutlass7Kernel2I50cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4EEvNT_6ParamsE",
                    "nvjet_sm90_hsh_64x8_64x16_4x1_v_bz_splitK_TNT",
                    "nvjet_hsh_64x16_64x16_2x4_h_bz_relubias_TNT",
                    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<float const> >",
                    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false, cublasGemvParamsEx>",
                    "_ZN8internal5gemvx6kernelIiiffffLb0ELb1ELb0ELb0ELi7ELb0E18cublasGemvParamsExIi30cublasGemvTensorStridedBatched",
                    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half, __half, false, float>",
                    "_Z10dot_kernelIfLi128ELi0E15cublasDotParamsI30cublasGemvTensorStridedBatchedIKfES1_IfEEEvT2_",
                    "_Z20reduce_1Block_kernelIfLi128ELi7E30cublasGemvTensorStridedBatchedIfES0_IKfES1_EvPKT_S4_T2_iS6_S4_",
                    "ampere_sgemm_32x32_sliced1x4_tn",
                    "triton_tem_fused_mm_3",
                    "triton_tem_fused_addmm_view_12",
                ],
            ),
            (
                Convolutions,
                &[
                    "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x32x32_stage4_warpsize4x1x1_g1_tensor16x8x16_t1r3s3_execute_kernel__5x_cudnn",
                    "_Z23implicit_convolve_sgemmIffLi128ELi6ELi7ELi3ELi3ELi5ELi1ELb0ELb1ELb1EEviiiPKT_iPT0_S2_18kernel_conv_params",
                    "_Z33convolve_common_engine_float_NHWCIffLi1024ELi5ELi5ELi3ELi3ELi3ELb1ELb0ELb0ELb0ELb0EEviiiPKT_S2_iPT0_",
                    "_ZN21cask_plugin__5x_cudnn14xmma__5x_cudnn28init_device_workspace_kernelIN14xmma__5x_cudnn13implicit_gemm5fprop36Warp",
                    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams)",
                    "cudnn_infer_ampere_scudnn_128x64_relu_small_nn_v1",
                    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_64x64_16x6_nhwc_align4>(T1::Params)",
                    "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>",
                    "triton_tem_fused_convolution_4",
                    "conv2d_f32",
                    "conv_transpose1d_f16",
                    "opara_depthwise_nhwc2_f16",
                ],
            ),
            (
                Attention,
                &[
                    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::half_t> >",
                    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80>::Params)",
                    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0",
                    "triton_tem_fused_flex_attention_0",
                ],
            ),
            (
                Softmax,
                &[
                    "void (anonymous namespace)::softmax_warp_forward<c10::Half, c10::Half, float, 7, false, false>",
                    "void onnxruntime::contrib::cuda::BiasSoftmaxWarpForward<__half, __half, float, 7>",
                    "triton_per_fused__softmax_add_div_5",
                    "softmax_f32",
                ],
            ),
            (
                Normalisation,
                &[
                    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::Half, float, false>",
                    "void onnxruntime::contrib::cuda::SkipLayerNormKernelSmall<__half, 192u, 4, false>",
                    "void onnxruntime::cuda::cuApplyLayerNorm<float, float, float, false>",
                    "triton_per_fused_add_native_layer_norm_2",
                    "triton_red_fused_add_embedding_native_layer_norm_0",
                    "triton_per_fused_add_mean_mul_pow_rsqrt_3",
                    "layernorm_f32",
                    "opara_layer_norm_f16",
                    "rmsnorm_f16",
                ],
            ),
            (
                Reductions,
                &[
                    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float> > >",
                    "triton_per_fused_mean_7",
                    "triton_red_fused_sum_1",
                    "fast_sum_f32",
                    "fast_sum_small_f32",
                ],
            ),
            (
                ElementWise,
                &[
                    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >",
                    "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>, 4>",
                    "void onnxruntime::cuda::_BinaryElementWise<float, float, float, onnxruntime::cuda::OP_Add<float, float, float> >",
                    "void onnxruntime::contrib::cuda::FastGeluKernel2<256u>(__half2, __half2, __half2, int, int, __half2 const*)",
                    "triton_poi_fused_gelu_4",
                    "triton_poi_fused__native_batch_norm_legit_no_training_relu_0",
                    "void op_generic_tensor_kernel<3, __half, float, __half, 256, (cudnnGenericOp_t)0, reducedDivisorArray>",
                    "void onnxruntime::cuda::BroadcastBiasKernel<__half, int, false>(__half const*, __half*, long, int)",
                    "opara_bias_act_f16",
                    "opara_chain",
                    "opara_chain_rows",
                    "badd_f16",
                    "bmul_f32",
                    "uadd_f32",
                    "ugelu_erf_f16",
                    "urelu_f32",
                    "affine_f32",
                    "where_u8_f32",
                    "cast_f32_f16",
                    "rope_f16",
                ],
            ),
            (
                Layout,
                &[
                    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>",
                    "_ZN5cudnn19engines_precompiled16nhwcToNchwKernelIfffLb1ELb0EL21cudnnKernelDataType_t0EEEvNS0_18nhwc2nchw_params_t",
                    "_ZN5cudnn19engines_precompiled20convertTensor_kernelIfffL21cudnnKernelDataType_t2EEEvT1_PKT_S3_PT0_m",
                    "_Z22tensorTransformGenericI6__halfS0_fLb1ELb0ELb0EL21cudnnKernelDataType_t0EEv26cudnnTensorTransformStruct",
                    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<float, unsigned int, 4, 128, 1>",
                    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda> >",
                    "void onnxruntime::cuda::TransposeKernel<float>(int, long, float const*, float*)",
                    "[CUDA memcpy Device-to-Device]",
                    "Memset (Device)",
                    "im2col_f32",
                    "ucopy_f32",
                    "copy2d_f16",
                    "opara_cat_v128",
                    "opara_space_to_depth_nhwc_f16",
                    "opara_split_heads_f16",
                ],
            ),
            (
                Pools,
                &[
                    "void at::native::(anonymous namespace)::max_pool_forward_nhwc<c10::Half, int>",
                    "void at::native::(anonymous namespace)::avg_pool2d_out_cuda_frame<float, float, int>",
                    "triton_poi_fused_max_pool2d_with_indices_relu_3",
                    "max_pool2d_f32",
                    "opara_pool_nhwc_f32",
                ],
            ),
            (
                Lookups,
                &[
                    "void at::native::(anonymous namespace)::indexSelectSmallIndex<float, long, unsigned int, 2, 2, -2>",
                    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)",
                    "triton_poi_fused_embedding_0",
                    "is_u32_f16",
                    "gather_u32_f32",
                ],
            ),
            (Other, &["opara_wait", "upsample_nearest2d_f32", "", "ß"]),
        ];
        for (family, names) in table {
            for name in *names {
                assert_eq!(Family::of(name), *family, "{name}");
            }
        }
    }

    #[test]
    fn shares_add_up() {
        let kernel = |name: &str, calls, us| Kernel { name: name.into(), calls, us };
        let shares =
            Family::shares(&[kernel("badd_f16", 2., 3.), kernel("bmul_f16", 1., 4.), kernel("memset", 1., 1.)]);
        let of_each = [(ElementWise, Share { calls: 3., us: 7. }), (Layout, Share { calls: 1., us: 1. })];
        assert_eq!(shares, BTreeMap::from(of_each));
    }
}
