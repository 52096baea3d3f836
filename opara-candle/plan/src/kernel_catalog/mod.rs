//! The kernel catalogue: properties of a kernel, found by its name.
//!
//! [`ENTRIES`] and [`LINKED`] declare candle's kernels by the prefixes of their names. The names of this library's kernels say what they
//! do in a word (`own`). `library` classifies kernels of cuBLAS, cuDNN and other frameworks by substrings. A [`KernelName`] looks its
//! kernel up once, when a pass is recorded or a trace is read, and later stages use the result. The memory that a kernel reads and
//! writes depends on its arguments, and so do its operands: a row says how ([`Effects`], [`Means`]). [`MEANINGLESS`] are those whose result is
//! no function that is known.

mod effects;
mod family;
mod library;
mod linked;
mod meaningless;
mod means;
mod name;
mod own;
mod properties;
mod shipped;

pub use effects::{Before, Effects, Extent, Factor};
pub use family::Family;
pub use linked::LINKED;
pub use meaningless::{Meaningless, MEANINGLESS};
pub use means::Means;
pub use name::KernelName;
pub use properties::{Class, Precision, Traffic};
pub use shipped::{KernelEntry, ELEMENT_TYPES, ENTRIES};

/// The properties of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Its family in reports.
    pub family: Family,
    /// The resource that limits it.
    pub class: Class,
    /// Its precision, if it is a matmul.
    pub precision: Precision,
    /// The memory that it moves.
    pub traffic: Traffic,
}

impl Kernel {
    /// The properties of the kernel with this name.
    pub fn of(name: &str) -> Self {
        let row = || KernelEntry::of_any(name).map(|row| (row.family, row.class, row.traffic));
        let of_library = || (library::family(&name.to_lowercase()), library::class(name), library::traffic(name));
        let (family, class, traffic) = own::properties(name).or_else(row).unwrap_or_else(of_library);
        Self { family, class, precision: library::precision(name), traffic }
    }
}

#[cfg(test)]
mod tests {
    use super::Family::*;
    use super::*;

    #[test]
    fn the_name_gives_class_and_precision() {
        let of = |name| (Kernel::of(name).class, Kernel::of(name).precision);
        assert_eq!(of("ampere_sgemm_32x32"), (Class::Compute, Precision::Single));
        assert_eq!(of("cutlass_tensorop_s1688gemm"), (Class::Compute, Precision::Tensor));
        assert_eq!(of("nvjet_hsh_128x64"), (Class::Compute, Precision::Half));
        for product in [
            "opara_matmul_product_64x64_f16",
            "opara_convolution_3x3_f16",
            "opara_matmul_gemv_1_f16",
            "opara_matmul_quantized_gated_gemv_4_32_affine_1_f16",
            "mul_mat_vec_q4_0_q8_1_cuda1",
            "indexed_moe_forward_q4k_q8_1",
        ] {
            assert_eq!(Kernel::of(product).class, Class::Compute, "{product}");
        }
        assert_eq!(of("im2col1d_f32"), (Class::Memory, Precision::Single));
        assert_eq!(of("im2col_conv2d_f16"), (Class::Memory, Precision::Half), "copies for a matmul");
    }

    #[test]
    fn the_name_gives_gathers_and_split_reductions() {
        let traffic = |name| Kernel::of(name).traffic;
        let gathers = ["is_u32_f32", "gather_i64_f32", "opara_gather_embedding_u32_f16", "get_rows_q4_0"];
        assert_eq!(gathers.map(traffic), [Traffic::Gather; 4]);
        assert_eq!(traffic("void splitKreduce_kernel<32>"), Traffic::SplitReduction);
        assert_eq!(["sum_is_f32", "badd_f32"].map(traffic), [Traffic::Accesses; 2]);
    }

    #[test]
    fn a_name_keeps_its_properties_through_serialisation() -> Result<(), serde_json::Error> {
        let name = KernelName::from("conv2d_f32");
        assert_eq!(serde_json::to_string(&name)?, "\"conv2d_f32\"");
        let read: KernelName = serde_json::from_str("\"conv2d_f32\"")?;
        assert_eq!((read.kernel(), &read), (name.kernel(), &name));
        assert_eq!((name.kernel().family, name.kernel().class), (Convolution, Class::Compute));
        Ok(())
    }

    #[test]
    fn families_of_real_kernel_names() {
        let table: &[(Family, &[&str])] = &[
            (
                Matmul,
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
                Convolution,
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
                    "opara_norm_layer_f16",
                    "rmsnorm_f16",
                ],
            ),
            (
                Reduction,
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
                    "opara_elementwise_bias_act_f16",
                    "opara_chain",
                    "opara_chain_rows",
                    "badd_f16",
                    "bmul_f32",
                    "uerf_f32",
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
                    "opara_layout_cat_v128",
                    "opara_layout_space_to_depth_nhwc_f16",
                    "opara_layout_split_heads_f16",
                ],
            ),
            (
                Pooling,
                &[
                    "void at::native::(anonymous namespace)::max_pool_forward_nhwc<c10::Half, int>",
                    "void at::native::(anonymous namespace)::avg_pool2d_out_cuda_frame<float, float, int>",
                    "triton_poi_fused_max_pool2d_with_indices_relu_3",
                    "max_pool2d_f32",
                    "opara_pooling_windows_nhwc_f32",
                ],
            ),
            (
                Gather,
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
                assert_eq!(Kernel::of(name).family, *family, "{name}");
            }
        }
    }
}
