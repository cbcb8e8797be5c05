#include "engine/graph/builder.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace milepost::graph {
namespace {

std::string ToString(DType dtype, const Shape& shape) {
  return absl::StrCat(Name(dtype), "[", absl::StrJoin(shape, ","), "]");
}

}  // namespace

Builder::Builder(const BuilderOptions& options) : options_(options) {
  if (options.batch < 1 || options.sequence < 1) {
    Fail("graph", absl::StrCat("batch ", options.batch, " and sequence ", options.sequence,
                               " must be at least 1"));
  }
  if (options.compute_dtype != DType::kF32 && options.compute_dtype != DType::kBf16 &&
      options.compute_dtype != DType::kF16) {
    Fail("graph", absl::StrCat("compute dtype ", Name(options.compute_dtype),
                               " is none of F32, BF16 and F16"));
  }
  const int64_t most = options.rows_apart ? options.cached_texts : options.cached_positions;
  if (caches() && (options.batch != 1 || options.sequence > most)) {
    Fail("graph",
         absl::StrCat(options.batch, " sequences of ", options.sequence,
                      " tokens are no piece of one text of at most ", options.cached_positions));
  }
}

void Builder::BeginBlock(absl::string_view name) { graph_.blocks.emplace_back(name); }

ValueId Builder::Parameter(absl::string_view name, const Shape& shape, Initializer initializer,
                           double stddev) {
  if (graph_.blocks.empty()) Fail(name, "a parameter needs a block: call BeginBlock first");
  for (int64_t dimension : shape) {
    if (dimension < 1) {
      Fail(name, absl::StrCat("every dimension of ", ToString(options_.compute_dtype, shape),
                              " must be at least 1"));
    }
  }
  const ValueId id = AddValue(name, options_.compute_dtype, shape, ValueKind::kParameter);
  graph_.parameters.push_back({.value = id,
                               .initializer = initializer,
                               .stddev = stddev,
                               .decay = shape.size() >= 2,
                               .base = constant_});
  return id;
}

ValueId Builder::Input(absl::string_view name, DType dtype, const Shape& shape) {
  const ValueId known = graph_.Input(name);
  if (known != kNoValue) return Expect(name, "input", known, dtype, shape) ? known : kNoValue;
  graph_.inputs.push_back(AddValue(name, dtype, shape, ValueKind::kInput));
  return graph_.inputs.back();
}

ValueId Builder::Tokens() { return Input("tokens", DType::kI32, {rows()}); }
ValueId Builder::Positions() { return Input("positions", DType::kI32, {rows()}); }
ValueId Builder::Texts() {
  return options_.cached_texts > 1 ? Input("texts", DType::kI32, {rows()}) : kNoValue;
}
ValueId Builder::Targets() { return Input("targets", DType::kI32, {rows()}); }

ValueId Builder::Images(int64_t height, int64_t width) {
  return Input("images", DType::kU8, {options_.batch, height, width, kImageChannels});
}

ValueId Builder::Statistic(absl::string_view name, DType dtype, const Shape& shape,
                           double initial) {
  if (dtype != DType::kF32 && dtype != DType::kI64) {
    Fail(name, absl::StrCat("a statistic is F32 or I64, not ", Name(dtype)));
  }
  const ValueId id = AddValue(name, dtype, shape, ValueKind::kStatistic);
  graph_.statistics.push_back({.value = id, .initial = initial});
  return id;
}

int64_t Builder::HeadDim(absl::string_view op, ValueId qkv, int64_t heads, int64_t kv_heads) {
  const int64_t packed = Dimension(op, "qkv", qkv, 1);
  if (!Expect(op, "qkv", qkv, options_.compute_dtype, {rows(), packed})) return 0;
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0) {
    Fail(op, absl::StrCat(heads, " heads are no multiple of ", kv_heads, " heads of keys"));
    return 0;
  }
  const int64_t all = heads + 2 * kv_heads;
  if (packed % all == 0) return packed / all;
  Fail(op, absl::StrCat("width ", packed, " of qkv is not a multiple of ", heads,
                        " heads and twice ", kv_heads, " more"));
  return 0;
}

ValueId Builder::AddLoss(absl::string_view name, ValueId targets, double weight, Op& op) {
  if (graph_.losses.size() == kMaxLosses) {
    Fail(name, absl::StrCat("the graph has ", kMaxLosses, " losses already"));
  }
  const ValueId sums =
      AddValue(absl::StrCat(name, ".sums"), DType::kF64, {kLossSums}, ValueKind::kStepAccumulator);
  op.attributes.head = static_cast<int32_t>(graph_.losses.size());
  op.outputs = {{.value = sums, .mode = WriteMode::kAccumulateInStep}};
  graph_.losses.push_back(
      {.name = std::string(name), .sums = sums, .targets = targets, .weight = weight});
  return sums;
}

void Builder::SetLogits(absl::string_view name, ValueId logits) {
  if (graph_.logits != kNoValue) Fail(name, "the graph has logits already");
  graph_.logits = logits;
}

absl::StatusOr<Graph> Builder::Finish() && {
  if (!status_.ok()) return status_;
  return std::move(graph_);
}

ValueId Builder::AddValue(absl::string_view name, DType dtype, const Shape& shape, ValueKind kind) {
  if (!names_.insert(std::string(name)).second) Fail(name, "two values have this name");
  const bool in_block = kind == ValueKind::kParameter || kind == ValueKind::kActivation;
  graph_.values.push_back(
      {.name = std::string(name),
       .dtype = dtype,
       .shape = shape,
       .kind = kind,
       .block = in_block ? static_cast<int>(graph_.blocks.size()) - 1 : kNoBlock});
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId Builder::AddActivation(absl::string_view name, absl::string_view suffix, DType dtype,
                               const Shape& shape) {
  return AddValue(absl::StrCat(name, suffix), dtype, shape, ValueKind::kActivation);
}

Op& Builder::AddOp(OpKind kind, std::initializer_list<ValueId> inputs) {
  Op op = {.kind = kind,
           .block = static_cast<int>(graph_.blocks.size()) - 1,
           .inputs = inputs,
           .attributes = {.batch = options_.batch, .sequence = options_.sequence},
           .constant = constant_};
  op.attributes.rows_apart = options_.rows_apart;
  return graph_.ops.emplace_back(std::move(op));
}

Shape Builder::ImageShape(absl::string_view op, absl::string_view operand, ValueId value) {
  if (value < 0 || value >= static_cast<ValueId>(graph_.values.size())) {
    Fail(op, absl::StrCat(operand, " is no value of this graph"));
    return {};
  }
  const Value& found = graph_.values[value];
  if (found.shape.size() == 4 && found.dtype == options_.compute_dtype) return found.shape;
  Fail(op, absl::StrCat(operand, " (", found.name, ") is ", Name(found.dtype), "[",
                        absl::StrJoin(found.shape, ","), "], expected images of ",
                        Name(options_.compute_dtype)));
  return {};
}

Shape Builder::WindowedShape(absl::string_view op, const Shape& shape, int64_t kernel,
                             const WindowOptions& options) {
  const int64_t smallest = std::min(shape[1], shape[2]) + 2 * options.padding;
  if (kernel < 1 || kernel > 15 || options.stride < 1 || options.padding < 0 ||
      options.padding >= kernel || smallest < kernel) {
    Fail(op, absl::StrCat("windows of ", kernel, " with stride ", options.stride, " and padding ",
                          options.padding, " do not fit images of ", shape[1], " x ", shape[2]));
    return {};
  }
  const auto windows = [&](int64_t size) {
    return (size + 2 * options.padding - kernel) / options.stride + 1;
  };
  return {shape[0], windows(shape[1]), windows(shape[2]), shape[3]};
}

uint32_t Builder::NextDropoutTag(double dropout) {
  if (!(dropout >= 0 && dropout < 1)) Fail("dropout", absl::StrCat(dropout, " is not in [0, 1)"));
  return ++dropout_tags_;
}

bool Builder::ExpectRowsOf(absl::string_view op, absl::string_view operand, ValueId value) {
  return value == kNoValue || Expect(op, operand, value, DType::kI32, {rows()});
}

bool Builder::Expect(absl::string_view op, absl::string_view operand, ValueId value, DType dtype,
                     const Shape& shape) {
  if (value < 0 || value >= static_cast<ValueId>(graph_.values.size())) {
    Fail(op, absl::StrCat(operand, " is no value of this graph"));
    return false;
  }
  const Value& found = graph_.values[value];
  if (found.dtype == dtype && found.shape == shape) return true;
  Fail(op, absl::StrCat(operand, " (", found.name, ") is ", ToString(found.dtype, found.shape),
                        ", expected ", ToString(dtype, shape)));
  return false;
}

int64_t Builder::Dimension(absl::string_view op, absl::string_view operand, ValueId value,
                           int axis) {
  if (value < 0 || value >= static_cast<ValueId>(graph_.values.size())) return 1;
  const Shape& shape = graph_.values[value].shape;
  if (axis < static_cast<int>(shape.size())) return shape[axis];
  Fail(op, absl::StrCat(operand, " (", graph_.values[value].name, ") has ", shape.size(),
                        " dimensions, expected at least ", axis + 1));
  return 1;
}

void Builder::Fail(absl::string_view op, absl::string_view message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(op, ": ", message));
}

}  // namespace milepost::graph
