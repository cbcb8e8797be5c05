// What tensor ranks exchange: those that divide the layers of one data rank among them (Shoeybi et
// al., "Megatron-LM", 2019). plan/passes/tensor_pass.h and rows_pass.h put the ops into a graph.
//
// kTensorReduce:  x[N,C], added[N,C] or none, bias[C] or none -> y[N,C] = the sum of the tensor
//                 ranks' x, + added + bias. All tensor ranks have the same y, to the bit. fp32 and
//                 bf16; sums of bf16 are made in fp32 and rounded once. N*C is a multiple of the
//                 number of tensor ranks.
// kTensorScatter: the same of some rows: x[N,C], added[n,C] or none, bias[C] or none -> y[n,C] =
//                 the rank's own rows of the sum, + added + bias. n = N / T; rank t has those from
//                 t n on. What x holds afterwards is undefined; nothing else reads it. Each rank
//                 makes a part of the bias' gradient.
// kTensorRows:    x[N,C], which all tensor ranks have alike, added[n,C] or none -> y[n,C] = the
//                 rank's own rows of x, + added
// kTensorGather:  x[n,C] -> y[N,C] or y[T,n,C]: every rank's x, in their order. fp32 and bf16.
// kBiasBackward:  dy[N,C] -> dbias[C], f32: the sums of dy's columns.
//
// Within one rank kTensorReduce adds what else it is given to its own x. Its gradient is that of
// its output on every tensor rank, and the bias' is the same on all. kTensorRows and kTensorGather
// are each other's gradient: what is gathered is alike on all, and so is its gradient.
#ifndef MILEPOST_ENGINE_OPS_TENSOR_PARALLEL_TENSOR_PARALLEL_H_
#define MILEPOST_ENGINE_OPS_TENSOR_PARALLEL_TENSOR_PARALLEL_H_

#include "engine/graph/graph.h"

namespace milepost::ops {

// y = the sum of x over the tensor ranks. `added` and `bias` may be kNoValue.
graph::Op TensorReduceOp(graph::ValueId x, graph::ValueId added, graph::ValueId bias,
                         graph::ValueId y);

// y = this rank's rows of the sum of x over the tensor ranks.
graph::Op TensorScatterOp(graph::ValueId x, graph::ValueId bias, graph::ValueId y);

// y = this rank's rows of x.
graph::Op TensorRowsOp(graph::ValueId x, graph::ValueId y);

// y = the tensor ranks' x, without a gradient.
graph::Op TensorGatherOp(graph::ValueId x, graph::ValueId y);

// y = the rows of all tensor ranks.
graph::Op TensorGatherRowsOp(graph::ValueId x, graph::ValueId y);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_TENSOR_PARALLEL_TENSOR_PARALLEL_H_
