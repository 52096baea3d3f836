//! One declaration a kernel: its parameters in order, by name. From it come the launch, the memory effects and the checks of its code.
//!
//! A parameter is `name: kind`, where a kind is one of
//!
//! - `i32`, `i64`, `f32`, `f64`, `usize`: a number, which the host gives as such; `u32`: one that the host counts as `usize`; `u32 [3]`: several,
//! - `in T [length]`: a pointer to `length` elements that are read; `opt T [length]`: one that may be null;
//!   `guarded T [length]`: one that may be null where another parameter keeps the kernel from it,
//! - `out T [length]`: overwritten; `kept T [length]`: partly overwritten; `added T [length]`: read and overwritten,
//! - `cache T [length]`: read, and partly overwritten beside a result,
//! - `parts T [8, 2]`: eight times two pointers that may be null, and the number that belongs to both,
//! - `table usize [64]`, `table f64 [64]`: one parameter of 64 numbers; `table in T [64, lengths, 2]`: one of 64 pointers. A pointer is null, or
//!   has twice the elements that the table `lengths` says at its place,
//! - `matrix T [rows, columns, some]`: rows of so many elements each, which are read by boxes of some of its rows; `matrix::Matrix` says how,
//! - `host`: a size that the kernel does not take; `grid [2]`: one that the launch's grid has along that axis.
//!
//! Behind the prefix of the kernel's names stand the element types that there are variants for, as their names end, and what a device
//! `needs` to run a variant.
//!
//! Before a pointer's kind, `early` says that the kernel reads through it before it waits for its predecessors; `wide` that it loads
//! vectors, and must begin at a multiple of 16 bytes; `vector` that it loads vectors where launch or kernel see that they fit; `tested`
//! that its code looks whether it is null, though it never is. A length is an expression of the parameters. The written bytes are known exactly if
//! its length is a product of parameters and numbers.
//!
//! The proof in `cuda::kernels` holds declarations against the kernels' PTX.

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, Result};
use cudarc::driver::{CudaView, CudaViewMut, DeviceRepr, LaunchArgs, LaunchConfig, PushKernelArg};

use super::matrix::Matrix;
use super::{address, allow_shared, expect, function};

/// A value that a kernel takes.
pub(crate) trait Argument {
    fn push<'a>(&'a mut self, launch: &mut LaunchArgs<'a>);

    /// Elements that a pointer points to; `None` if it is null, or none.
    fn held(&self) -> Option<usize> {
        None
    }
}

macro_rules! numbers {
    ($($t:ty)*) => {$(
        impl Argument for $t {
            fn push<'a>(&'a mut self, launch: &mut LaunchArgs<'a>) {
                launch.arg(&*self);
            }
        }
    )*};
}

numbers! { i32 u32 i64 f32 f64 usize }

/// Words of a table: numbers, or addresses.
#[repr(transparent)]
pub(crate) struct Table<const COUNT: usize>([u64; COUNT]);

// SAFETY: it is plain words, which a kernel gets by value.
unsafe impl<const COUNT: usize> DeviceRepr for Table<COUNT> {}

impl<const COUNT: usize> Argument for Table<COUNT> {
    fn push<'a>(&'a mut self, launch: &mut LaunchArgs<'a>) {
        launch.arg(&*self);
    }
}

impl<const COUNT: usize> Table<COUNT> {
    /// Of operands that hold `times` as many elements as `lengths` say.
    ///
    /// # Errors
    /// One that holds fewer, or is missing.
    pub fn of_operands<T>(
        name: &str,
        operands: &[Option<&CudaView<T>>; COUNT],
        lengths: &Self,
        times: usize,
        device: &CudaDevice,
    ) -> Result<Self> {
        for (operand, length) in operands.iter().zip(lengths.0) {
            expect(name, operand.map_or(0, CudaView::len), length as usize * times)?;
        }
        Ok(Self(operands.map(|operand| operand.map_or(0, |operand| address(operand, device)))))
    }
}

impl<const COUNT: usize> From<[usize; COUNT]> for Table<COUNT> {
    fn from(numbers: [usize; COUNT]) -> Self {
        Self(numbers.map(|number| number as u64))
    }
}

impl<const COUNT: usize> From<[f64; COUNT]> for Table<COUNT> {
    fn from(numbers: [f64; COUNT]) -> Self {
        Self(numbers.map(f64::to_bits))
    }
}

impl Argument for Matrix {
    fn push<'a>(&'a mut self, launch: &mut LaunchArgs<'a>) {
        launch.arg(&*self);
    }
}

/// An operand of so many rows and columns as a matrix that is read by boxes of `some` rows.
///
/// # Errors
/// One that cannot be [described](Matrix::at); a failed driver call.
pub(crate) fn described<T>(
    name: &str,
    operand: &CudaView<T>,
    [rows, columns]: [usize; 2],
    some: usize,
    device: &CudaDevice,
) -> Result<Matrix> {
    let stream = device.cuda_stream();
    match Matrix::at(stream.context(), address(operand, device), [rows, columns], some, size_of::<T>())? {
        Some(matrix) => Ok(matrix),
        None => bail!("`{name}`, {rows} rows of {columns} elements, is no matrix that is read by boxes"),
    }
}

/// A value that the host alone uses.
impl Argument for () {
    fn push<'a>(&'a mut self, _: &mut LaunchArgs<'a>) {}
}

impl<N: Argument, const COUNT: usize> Argument for [N; COUNT] {
    fn push<'a>(&'a mut self, launch: &mut LaunchArgs<'a>) {
        self.iter_mut().for_each(|each| each.push(launch));
    }
}

impl<A: Argument, B: Argument> Argument for (A, B) {
    fn push<'a>(&'a mut self, launch: &mut LaunchArgs<'a>) {
        self.0.push(launch);
        self.1.push(launch);
    }
}

impl<T> Argument for &CudaView<'_, T> {
    fn push<'a>(&'a mut self, launch: &mut LaunchArgs<'a>) {
        launch.arg(*self);
    }

    fn held(&self) -> Option<usize> {
        Some(self.len())
    }
}

impl<T> Argument for Option<&CudaView<'_, T>> {
    fn push<'a>(&'a mut self, launch: &mut LaunchArgs<'a>) {
        const NULL: u64 = 0;
        match self {
            Some(operand) => launch.arg(*operand),
            None => launch.arg(&NULL),
        };
    }

    fn held(&self) -> Option<usize> {
        self.map(CudaView::len)
    }
}

impl<T> Argument for CudaViewMut<'_, T> {
    fn push<'a>(&'a mut self, launch: &mut LaunchArgs<'a>) {
        launch.arg(self);
    }

    fn held(&self) -> Option<usize> {
        Some(self.len())
    }
}

/// # Errors
/// An operand that holds fewer elements than a kernel reaches.
pub(crate) fn expect_held(name: &str, operand: &impl Argument, needed: usize) -> Result<()> {
    match operand.held() {
        Some(held) if held < needed => bail!("`{name}` holds {held} elements, but needs {needed}"),
        _ => Ok(()),
    }
}

/// # Errors
/// An operand that begins elsewhere than at a multiple of 16 bytes.
pub(crate) fn expect_wide<'a, T: 'a>(
    name: &str,
    operand: impl Into<Option<&'a CudaView<'a, T>>>,
    device: &CudaDevice,
) -> Result<()> {
    match operand.into() {
        Some(operand) if !address(operand, device).is_multiple_of(16) => {
            bail!("`{name}` does not begin at a multiple of 16 bytes")
        }
        _ => Ok(()),
    }
}

/// # Errors
/// A size that 32 bits do not count.
pub(crate) fn counted(name: &str, size: usize) -> Result<u32> {
    u32::try_from(size).or_else(|_| bail!("`{name}` is {size}, which the kernel does not count"))
}

/// # Errors
/// A grid with another number of blocks along an axis.
pub(crate) fn expect_grid(name: &str, config: &LaunchConfig, axis: usize, size: usize) -> Result<()> {
    if <[u32; 3]>::from(config.grid_dim)[axis] as usize != size {
        bail!("`{name}` is {size}, but the grid is {:?}", config.grid_dim)
    }
    Ok(())
}

/// Launches the kernel of this name in the PTX module `code`. For `kernels!` alone, which has held the arguments against the declaration.
///
/// # Errors
/// Code that does not run on the device, more shared memory than a block may have, or a launch that fails.
pub(crate) fn launch(
    device: &CudaDevice,
    name: &str,
    code: &str,
    config: LaunchConfig,
    arguments: &mut [&mut dyn Argument],
) -> Result<()> {
    let function = function(device, name, code)?;
    if config.shared_mem_bytes > 0 {
        allow_shared(device, &function)?;
    }
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for argument in arguments {
        argument.push(&mut launch);
    }
    // SAFETY: the arguments are those that the kernel declares, in number, width and order, and it writes through those that are declared
    // as written: a test holds each declaration against the code. It reaches no more elements than the declared lengths, for which
    // `kernels!` has looked at each operand, and begins at the multiples of 16 bytes that it has looked at. The operator's folder upholds
    // the rest, for nobody else can name the kernel: sizes that the kernel's indices can count, strides within the lengths, vectors
    // that fit, and the grid, block and shared memory that the kernel is written for. Work on the stream is in order, so nobody else
    // reaches the operands meanwhile.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
}

/// Declares the kernels of an operator: for each a struct with a value for each parameter and a function `launch`, and all of them in
/// `DECLARED`. The module documentation says what a declaration is.
macro_rules! kernels {
    ($(
        $(#[$doc:meta])*
        $name:ident $(<$($type:ident),+>)? = $prefix:literal for [$($element:ident)+] $(needs [$($need:ident)+])? {
            $($(#[$note:meta])* $field:ident: $($word:ident)+ $([$($inside:tt)+])?),+ $(,)?
        }
    )+) => {
        $(
            $(#[$doc])*
            pub(super) struct $name<'a $($(, $type)+)?> {
                $($(#[$note])* pub $field: kernels!(@type $($word)+ $([$($inside)+])?),)+
            }

            #[allow(dead_code, reason = "not every operator asks")]
            impl $(<$($type),+>)? $name<'_ $($(, $type)+)?> {
                const DECLARED: $crate::cuda::driver::kernels::declared::Declared = {
                    use $crate::cuda::driver::kernels::declared::{Declared, Kind, Need, Parameter, Pointer, Role};
                    const NEEDS: &[Need] = &[$($(Need::$need),+)?];
                    Declared {
                        prefix: $prefix,
                        elements: &[$(stringify!($element)),+],
                        needs: NEEDS,
                        parameters: &[$(kernels!(@parameter $field; $($word)+ $([$($inside)+])?)),+],
                    }
                };

                /// Is there a variant for elements of this type?
                pub fn is_for(dtype: candle::DType) -> bool {
                    Self::DECLARED.elements.contains(&dtype.as_str())
                }

                /// Has the device all that the code of a variant needs?
                pub fn runs_on(of: &$crate::cuda::driver::kernels::Capabilities) -> bool {
                    Self::DECLARED.needs.iter().all(|need| need.is_met(of))
                }
            }

            $(#[$doc])*
            impl<$($($type: cudarc::driver::DeviceRepr),+)?> $name<'_ $($(, $type)+)?> {
                /// Launches the variant of the kernel in the PTX module `code`.
                ///
                /// # Errors
                /// Operands that hold less than the declaration says, or begin elsewhere, or a launch that fails.
                #[allow(clippy::let_unit_value, reason = "what the kernel does not take")]
                pub fn launch(
                    self,
                    device: &candle::CudaDevice,
                    variant: &str,
                    code: &str,
                    config: cudarc::driver::LaunchConfig,
                ) -> candle::Result<()> {
                    let Self { $($field),+ } = self;
                    $(kernels!(@check device config $field; $($word)+ $([$($inside)+])?);)+
                    $(let mut $field = kernels!(@argument device $field; $($word)+ $([$($inside)+])?);)+
                    let name = format!(concat!($prefix, "{}"), variant);
                    $crate::cuda::driver::kernels::declare::launch(device, &name, code, config, &mut [$(&mut $field),+])
                }
            }
        )+

        /// The declarations of this file's kernels.
        pub(crate) const DECLARED: &[$crate::cuda::driver::kernels::declared::Declared] =
            &[$(<$name<'static $($(, kernels!(@any $type))+)?>>::DECLARED),+];
    };

    (@any $type:ident) => { () };

    (@type table $role:ident $t:ident [$count:literal, $lengths:ident, $times:literal]) => {
        [Option<&'a cudarc::driver::CudaView<'a, $t>>; $count]
    };
    (@type table $number:ident [$count:literal]) => { [$number; $count] };
    (@type matrix $t:ident [$rows:expr, $columns:expr, $some:expr]) => { &'a cudarc::driver::CudaView<'a, $t> };
    (@type $modifier:ident $next:ident $t:ident $($rest:tt)*) => { kernels!(@type $next $t $($rest)*) };
    (@type in $t:ident $([$($length:tt)+])?) => { &'a cudarc::driver::CudaView<'a, $t> };
    (@type cache $t:ident $([$($length:tt)+])?) => { &'a cudarc::driver::CudaView<'a, $t> };
    (@type opt $t:ident $([$($length:tt)+])?) => { Option<&'a cudarc::driver::CudaView<'a, $t>> };
    (@type guarded $t:ident $([$($length:tt)+])?) => { Option<&'a cudarc::driver::CudaView<'a, $t>> };
    (@type parts $t:ident [$count:literal, $pointers:literal]) => {
        [([Option<&'a cudarc::driver::CudaView<'a, $t>>; $pointers], usize); $count]
    };
    (@type $written:ident $t:ident [$($length:tt)+]) => { cudarc::driver::CudaViewMut<'a, $t> };
    (@type host) => { usize };
    (@type grid [$axis:literal]) => { usize };
    (@type u32 $([$count:literal])?) => { kernels!(@type usize $([$count])?) };
    (@type $number:ident) => { $number };
    (@type $number:ident [$count:literal]) => { [$number; $count] };

    (@check $device:ident $config:ident $field:ident; wide $($rest:tt)+) => {
        $crate::cuda::driver::kernels::declare::expect_wide(stringify!($field), $field, $device)?;
        kernels!(@check $device $config $field; $($rest)+)
    };
    (@check $device:ident $config:ident $field:ident; parts $($rest:tt)+) => {};
    (@check $device:ident $config:ident $field:ident; matrix $t:ident [$rows:expr, $columns:expr, $some:expr]) => {
        $crate::cuda::driver::kernels::declare::expect_held(stringify!($field), &$field, $rows * $columns)?
    };
    (@check $device:ident $config:ident $field:ident; table $($rest:tt)+) => {};
    (@check $device:ident $config:ident $field:ident; grid [$axis:literal]) => {
        $crate::cuda::driver::kernels::declare::expect_grid(stringify!($field), &$config, $axis, $field)?
    };
    (@check $device:ident $config:ident $field:ident; $role:ident $t:ident [$($length:tt)+]) => {
        $crate::cuda::driver::kernels::declare::expect_held(stringify!($field), &$field, $($length)+)?
    };
    (@check $device:ident $config:ident $field:ident; $modifier:ident $($rest:tt)+) => {
        kernels!(@check $device $config $field; $($rest)+)
    };
    (@check $($number:tt)+) => {};

    (@argument $device:ident $field:ident; host) => { () };
    (@argument $device:ident $field:ident; grid [$axis:literal]) => { () };
    (@argument $device:ident $field:ident; table $role:ident $t:ident [$count:literal, $lengths:ident, $times:literal]) => {
        $crate::cuda::driver::kernels::declare::Table::of_operands(
            stringify!($field), &$field, &$lengths, $times, $device,
        )?
    };
    (@argument $device:ident $field:ident; table $($rest:tt)+) => {
        $crate::cuda::driver::kernels::declare::Table::from($field)
    };
    (@argument $device:ident $field:ident; early matrix $($rest:tt)+) => {
        kernels!(@argument $device $field; matrix $($rest)+)
    };
    (@argument $device:ident $field:ident; matrix $t:ident [$rows:expr, $columns:expr, $some:expr]) => {
        $crate::cuda::driver::kernels::declare::described(
            stringify!($field), $field, [$rows as usize, $columns as usize], $some as usize, $device,
        )?
    };
    (@argument $device:ident $field:ident; u32) => {
        $crate::cuda::driver::kernels::declare::counted(stringify!($field), $field)?
    };
    (@argument $device:ident $field:ident; u32 [$count:literal]) => {{
        let mut counted = [0; $count];
        for (counted, size) in counted.iter_mut().zip($field) {
            *counted = $crate::cuda::driver::kernels::declare::counted(stringify!($field), size)?;
        }
        counted
    }};
    (@argument $device:ident $field:ident; parts $t:ident [$count:literal, $pointers:literal]) => {{
        let mut counted = $field.map(|(operands, _)| (operands, 0));
        for (part, (_, size)) in counted.iter_mut().zip($field) {
            part.1 = $crate::cuda::driver::kernels::declare::counted(stringify!($field), size)?;
        }
        counted
    }};
    (@argument $device:ident $field:ident; $($rest:tt)+) => { $field };

    (@parameter $field:ident; early $($rest:tt)+) => { kernels!(@parameter $field; $($rest)+).early() };
    (@parameter $field:ident; tested $($rest:tt)+) => { kernels!(@parameter $field; $($rest)+).tested() };
    (@parameter $field:ident; wide $($rest:tt)+) => { kernels!(@parameter $field; $($rest)+).wide() };
    (@parameter $field:ident; vector $($rest:tt)+) => { kernels!(@parameter $field; $($rest)+).vectors() };
    (@parameter $field:ident; parts $t:ident [$count:literal, $pointers:literal]) => {
        Parameter::of(stringify!($field), Kind::Parts { count: $count, pointers: $pointers })
    };
    (@parameter $field:ident; table $role:ident $t:ident [$count:literal, $lengths:ident, $times:literal]) => {
        Parameter::of(stringify!($field), Kind::Table {
            count: $count,
            of: Some(Pointer {
                role: kernels!(@role $role),
                element: stringify!($t),
                length: stringify!($lengths * $times),
            }),
        })
    };
    (@parameter $field:ident; table $number:ident [$count:literal]) => {
        Parameter::of(stringify!($field), Kind::Table { count: $count, of: None })
    };
    (@parameter $field:ident; matrix $t:ident [$rows:expr, $columns:expr, $some:expr]) => {
        Parameter::of(stringify!($field), Kind::Matrix(Pointer {
            role: Role::Read,
            element: stringify!($t),
            length: stringify!($rows * $columns),
        })).wide()
    };
    (@parameter $field:ident; host) => { Parameter::of(stringify!($field), Kind::Host) };
    (@parameter $field:ident; grid [$axis:literal]) => { Parameter::of(stringify!($field), Kind::Grid($axis)) };
    (@parameter $field:ident; $role:ident $t:ident [$($length:tt)+]) => {
        Parameter::of(stringify!($field), Kind::Pointer(Pointer {
            role: kernels!(@role $role),
            element: stringify!($t),
            length: stringify!($($length)+),
        }))
    };
    (@parameter $field:ident; $number:ident) => {
        Parameter::of(stringify!($field), Kind::Numbers { bytes: size_of::<$number>(), count: 1 })
    };
    (@parameter $field:ident; $number:ident [$count:literal]) => {
        Parameter::of(stringify!($field), Kind::Numbers { bytes: size_of::<$number>(), count: $count })
    };

    (@role in) => { Role::Read };
    (@role opt) => { Role::Optional };
    (@role guarded) => { Role::Guarded };
    (@role out) => { Role::Overwritten };
    (@role kept) => { Role::Kept };
    (@role added) => { Role::Added };
    (@role cache) => { Role::Cache };
}

pub(crate) use kernels;
