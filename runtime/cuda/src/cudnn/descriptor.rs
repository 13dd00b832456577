//! Objects of cuDNN's graph interface: created, given attributes, finalized, and destroyed.

use std::ffi::c_void;
use std::ptr;

use super::library::{CudnnLibrary, Handle};
use crate::error::Result;

/// The kind of a descriptor, with the numbers of `cudnnBackendDescriptorType_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub(super) enum DescriptorKind {
    Pointwise = 0,
    EngineConfig = 3,
    Heuristics = 4,
    Plan = 5,
    OperationPointwise = 13,
    Graph = 15,
    Pack = 16,
    Tensor = 17,
    MatMul = 18,
    OperationMatMul = 19,
    Reduction = 21,
    OperationReduction = 22,
    OperationReshape = 31,
}

/// An attribute, with the numbers of `cudnnBackendAttributeName_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub(super) enum DescriptorAttribute {
    PointwiseMode = 0,
    PointwisePrecision = 1,
    PointwiseAxis = 9,
    HeuristicsMode = 200,
    HeuristicsGraph = 201,
    HeuristicsResults = 202,
    PlanHandle = 400,
    PlanConfig = 401,
    PlanWorkspace = 402,
    OperationPointwise = 750,
    OperationPointwiseX = 751,
    OperationPointwiseB = 752,
    OperationPointwiseY = 753,
    OperationPointwiseT = 758,
    GraphHandle = 800,
    GraphOperations = 801,
    TensorAlignment = 900,
    TensorType = 901,
    TensorExtents = 902,
    TensorStrides = 903,
    TensorId = 906,
    TensorVirtual = 907,
    TensorByValue = 908,
    PackIds = 1000,
    PackPointers = 1001,
    PackWorkspace = 1003,
    MatMulPrecision = 1500,
    OperationMatMulA = 1520,
    OperationMatMulB = 1521,
    OperationMatMulC = 1522,
    OperationMatMul = 1523,
    ReductionOperator = 1600,
    ReductionPrecision = 1601,
    OperationReductionX = 1610,
    OperationReductionY = 1611,
    OperationReduction = 1612,
    OperationReshapeX = 2200,
    OperationReshapeY = 2201,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum AttributeValue<'a> {
    Handle(Handle),
    DataType(i32),
    Bool(bool),
    Ints(&'a [i64]),
    Pointers(&'a [*mut c_void]),
    HeuristicsMode(i32),
    PointwiseMode(i32),
    Reduction(i32),
    One(&'a CudnnDescriptor),
    Many(&'a [CudnnDescriptor]),
}

/// The types of attributes that are read.
const INT: i32 = 3;
const DESCRIPTOR: i32 = 15;

/// An object of the library, which is destroyed when this value is dropped.
pub(super) struct CudnnDescriptor {
    cudnn: &'static CudnnLibrary,
    kind: DescriptorKind,
    pub at: Handle,
}

impl std::fmt::Debug for CudnnDescriptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}

// SAFETY: descriptors are memory of the library; a finalized one is only read.
unsafe impl Send for CudnnDescriptor {}
// SAFETY: as above.
unsafe impl Sync for CudnnDescriptor {}

impl Drop for CudnnDescriptor {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and owned by this value only.
        unsafe { (self.cudnn.functions.unmake)(self.at) };
    }
}

impl CudnnDescriptor {
    pub fn new(cudnn: &'static CudnnLibrary, kind: DescriptorKind) -> Result<CudnnDescriptor> {
        let mut handle = ptr::null_mut();
        // SAFETY: the library writes a descriptor there.
        let status = unsafe { (cudnn.functions.make)(kind as i32, &mut handle) };
        cudnn.check(&format!("making {kind:?}"), status)?;
        Ok(CudnnDescriptor { cudnn, kind, at: handle })
    }

    pub fn with(self, attribute: DescriptorAttribute, value: AttributeValue<'_>) -> Result<CudnnDescriptor> {
        let many: Vec<Handle>;
        let (kind, count, data): (i32, usize, *const c_void) = match &value {
            AttributeValue::Handle(handle) => (0, 1, ptr::from_ref(handle).cast()),
            AttributeValue::DataType(number) => (1, 1, ptr::from_ref(number).cast()),
            AttributeValue::Bool(truth) => (2, 1, ptr::from_ref(truth).cast()),
            AttributeValue::Ints(values) => (INT, values.len(), values.as_ptr().cast()),
            AttributeValue::Pointers(pointers) => (6, pointers.len(), pointers.as_ptr().cast()),
            AttributeValue::HeuristicsMode(number) => (8, 1, ptr::from_ref(number).cast()),
            AttributeValue::PointwiseMode(number) => (14, 1, ptr::from_ref(number).cast()),
            AttributeValue::Reduction(number) => (18, 1, ptr::from_ref(number).cast()),
            AttributeValue::One(one) => (DESCRIPTOR, 1, ptr::from_ref(&one.at).cast()),
            AttributeValue::Many(descriptors) => {
                many = descriptors.iter().map(|d| d.at).collect();
                (DESCRIPTOR, many.len(), many.as_ptr().cast())
            }
        };
        // SAFETY: the descriptor is alive, and there are `count` values of that type.
        let set = unsafe { (self.cudnn.functions.set)(self.at, attribute as i32, kind, count as i64, data) };
        self.cudnn.check(&format!("setting {attribute:?} of {:?} to {value:?}", self.kind), set)?;
        Ok(self)
    }

    /// Finalizes the descriptor: no attribute can be set afterwards.
    pub fn finish(self) -> Result<CudnnDescriptor> {
        // SAFETY: the descriptor is alive.
        let finished = unsafe { (self.cudnn.functions.finalize)(self.at) };
        self.cudnn.check(&format!("finishing {:?}", self.kind), finished)?;
        Ok(self)
    }

    pub fn get_int(&self, attribute: DescriptorAttribute) -> Result<i64> {
        let mut value = 0i64;
        let mut count = 0i64;
        // SAFETY: the descriptor is alive; there is room for one integer.
        let got = unsafe {
            let value = ptr::from_mut(&mut value).cast();
            (self.cudnn.functions.get)(self.at, attribute as i32, INT, 1, &mut count, value)
        };
        self.cudnn.check(&format!("reading {attribute:?} of {:?}", self.kind), got)?;
        Ok(value)
    }

    pub fn get_descriptors(
        &self,
        attribute: DescriptorAttribute,
        kind: DescriptorKind,
    ) -> Result<Vec<CudnnDescriptor>> {
        let mut count = 0i64;
        let call = format!("reading {attribute:?} of {:?}", self.kind);
        let get = self.cudnn.functions.get;
        let attribute = attribute as i32;
        // SAFETY: the descriptor is alive; without room the library only writes the number of values.
        let got = unsafe { get(self.at, attribute, DESCRIPTOR, 0, &mut count, ptr::null_mut()) };
        self.cudnn.check(&call, got)?;
        let room = (0..count).map(|_| CudnnDescriptor::new(self.cudnn, kind));
        let mut descriptors = room.collect::<Result<Vec<_>, _>>()?;
        let mut handles: Vec<Handle> = descriptors.iter().map(|d| d.at).collect();
        let mut filled = 0i64;
        // SAFETY: as above; the library fills the listed descriptors.
        let got =
            unsafe { get(self.at, attribute, DESCRIPTOR, count, &mut filled, handles.as_mut_ptr().cast()) };
        self.cudnn.check(&call, got)?;
        descriptors.truncate(usize::try_from(filled).unwrap_or(0));
        Ok(descriptors)
    }
}
