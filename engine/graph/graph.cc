#include "engine/graph/graph.h"

#include "common/check.h"

namespace milepost::graph {

int64_t Elements(const Shape& shape) {
  int64_t elements = 1;
  for (int64_t dimension : shape) elements *= dimension;
  return elements;
}

const char* Name(OpKind kind) {
  switch (kind) {
#define MP_OP(kind, name) \
  case OpKind::k##kind:   \
    return name;
#include "engine/graph/op_kinds.inc"
#undef MP_OP
  }
  return "unknown";
}

ValueId Graph::Input(absl::string_view name) const {
  for (const ValueId input : inputs) {
    if (values[input].name == name) return input;
  }
  return kNoValue;
}

int64_t Graph::ElementsOf(const Parameter& parameter) const {
  const std::vector<int64_t>& whole =
      parameter.division.whole() ? parameter.unpacked : parameter.undivided;
  if (whole.empty()) return Elements(values[parameter.value].shape);
  return Elements(Shape(whole.begin(), whole.end()));
}

}  // namespace milepost::graph
