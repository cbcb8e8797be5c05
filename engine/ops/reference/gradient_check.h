// Checks the backward that AddBackward writes against central differences of the forward, in fp64.
//
//   EXPECT_THAT(GradientErrors(forward_graph, options), IsEmpty());
#ifndef MILEPOST_ENGINE_OPS_REFERENCE_GRADIENT_CHECK_H_
#define MILEPOST_ENGINE_OPS_REFERENCE_GRADIENT_CHECK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/ops/reference/reference_interpreter.h"

namespace milepost::graph {

struct GradientCheckOptions {
  int64_t vocabulary = 0;          // token ids are drawn below it
  int elements_per_parameter = 8;  // spread over the parameter; all where it has fewer
  double tolerance = 1e-7;         // absolute below a gradient of 1, relative above
  // Of the differences. Smaller where a ReLU's or a maximum's kink may lie within it.
  double step = 1e-5;
  int micro_steps = 1;      // gradients and loss are summed over so many different batches
  bool skips_base = false;  // what adapters adapt (graph::Parameter::base) is not checked
  // Fills an input that is not drawn at random. False: it does not know it.
  std::function<bool(const std::string& name, std::vector<int32_t>& ids)> fill = {};
};

// `forward` is a graph with a loss and no backward. Parameters, tokens, images and targets (every
// seventh ignored) get fixed pseudo-random values. One line per element that differs, naming the
// parameter, the element and both gradients; also when AddBackward fails or leaves a parameter out.
std::vector<std::string> GradientErrors(const Graph& forward, const GradientCheckOptions& options);

// A number in [-1, 1) that depends on `index` alone: fixed test data.
double TestNumber(uint64_t index);

// A dropout mask that depends on (tag, element) alone.
double TestDropout(uint32_t tag, double p, int64_t element);

}  // namespace milepost::graph

#endif  // MILEPOST_ENGINE_OPS_REFERENCE_GRADIENT_CHECK_H_
