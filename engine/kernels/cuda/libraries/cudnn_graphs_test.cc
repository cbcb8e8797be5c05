// Of a described Hopper GPU: that cuDNN has engines for what the ops want. Nothing runs here.
#include "engine/kernels/cuda/libraries/cudnn_graphs.h"

#include <dlfcn.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::kernels::cuda {
namespace {

using ::testing::HasSubstr;

TEST(DeviceDescriptionTest, TextHasNothingToEscape) {
  DeviceDescription device = HopperH200();
  device.name = "a\"b\\c\nd";
  EXPECT_THAT(CudnnJson(device), HasSubstr("{\"deviceName\":\"abcd\""));
  EXPECT_THAT(CudnnJson(device), HasSubstr("\"deviceVer\":900"));
}

#ifndef MILEPOST_HAVE_CUDA

TEST(CudnnGraphsTest, EveryShapeHasAnEngineOnHopper) { GTEST_SKIP() << "built without CUDA"; }

#else

// cuDNN loads libcuda.so.1 by name and takes a stand-in that is there already.
bool LoadDriver() {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr) return true;
#ifdef MILEPOST_CUDA_DRIVER_STUB
  return dlopen(MILEPOST_CUDA_DRIVER_STUB, RTLD_NOW | RTLD_GLOBAL) != nullptr;
#else
  return false;
#endif
}

std::unique_ptr<CudnnGraphs> Hopper() {
  auto graphs = CudnnGraphs::ForDevice(HopperH200());
  EXPECT_TRUE(graphs.ok()) << graphs.status();
  return graphs.ok() ? *std::move(graphs) : nullptr;
}

class CudnnAttentionTest : public ::testing::TestWithParam<std::tuple<int, DType, bool> > {};

TEST_P(CudnnAttentionTest, EveryShapeHasAnEngineOnHopper) {
  if (!LoadDriver()) GTEST_SKIP() << "no libcuda.so.1, and no stub of it in the toolkit";
  const auto [head_dim, type, causal] = GetParam();
  const auto graphs = Hopper();
  ASSERT_NE(graphs, nullptr);
  int checked = 0;
  for (const int64_t sequence : {512, 1024, 2048, 4096, 8192}) {
    for (const int64_t kv_heads : {32, 8}) {
      // As many as a plan has (ops::PlannedDocuments).
      for (const int64_t documents : {int64_t{0}, 2 * (4 + sequence / 128)}) {
        for (const bool deterministic : {true, false}) {
          const AttentionGraph graph{.shape = {.batch = 2,
                                               .sequence = sequence,
                                               .heads = 32,
                                               .head_dim = head_dim,
                                               .kv_heads = kv_heads,
                                               .causal = causal},
                                     .type = type,
                                     .max_documents = documents,
                                     .deterministic = deterministic};
          for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
            const absl::Status status = graphs->Check(graph, pass);
            EXPECT_TRUE(status.ok()) << status;
            ++checked;
          }
        }
      }
    }
  }
  EXPECT_EQ(checked, 80);
}

INSTANTIATE_TEST_SUITE_P(All, CudnnAttentionTest,
                         ::testing::Combine(::testing::Values(64, 128),
                                            ::testing::Values(DType::kBf16, DType::kF16),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return absl::StrCat(
                               "D", std::get<0>(info.param),
                               std::get<1>(info.param) == DType::kBf16 ? "Bf16" : "F16",
                               std::get<2>(info.param) ? "Causal" : "Full");
                         });

// Windows of any size, with the scratch of what has none; heads as wide as Gemma's.
TEST(CudnnAttentionTest, WindowsAndWideHeadsHaveAnEngineOnHopper) {
  if (!LoadDriver()) GTEST_SKIP() << "no libcuda.so.1, and no stub of it in the toolkit";
  const auto graphs = Hopper();
  ASSERT_NE(graphs, nullptr);
  for (const auto& [window, head_dim] :
       {std::pair{1, 128}, {300, 128}, {512, 256}, {0, 256}, {1024, 192}, {4096, 128}}) {
    for (const int64_t documents : {0, 72}) {
      for (const bool deterministic : {true, false}) {
        AttentionGraph graph{.shape = {.batch = 2,
                                       .sequence = 4096,
                                       .heads = 32,
                                       .head_dim = head_dim,
                                       .kv_heads = 8,
                                       .window = window},
                             .max_documents = documents,
                             .deterministic = deterministic};
        AttentionGraph whole = graph;
        whole.shape.window = 0;
        for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
          EXPECT_TRUE(graphs->Check(graph, pass).ok()) << graphs->Check(graph, pass);
          const auto bytes = graphs->ExpectedWorkspaceBytes(graph, pass);
          const auto of_whole = graphs->ExpectedWorkspaceBytes(whole, pass);
          ASSERT_TRUE(bytes.ok() && of_whole.ok());
          EXPECT_LE(*bytes, *of_whole) << "window " << window << " documents " << documents;
        }
      }
    }
  }
}

TEST(CudnnAttentionTest, RaggedSizesHaveAnEngineOnHopper) {
  if (!LoadDriver()) GTEST_SKIP() << "no libcuda.so.1, and no stub of it in the toolkit";
  const auto graphs = Hopper();
  ASSERT_NE(graphs, nullptr);
  const AttentionGraph graph{
      .shape = {.batch = 3, .sequence = 100, .heads = 3, .head_dim = 96, .causal = false}};
  EXPECT_TRUE(graphs->Check(graph, AttentionPass::kForward).ok());
  EXPECT_TRUE(graphs->Check(graph, AttentionPass::kBackward).ok());
}

// Of cuDNN 9.19: where the own kernels are needed. A newer one may do better; then
// docs/internals/cuda.md changes.
TEST(CudnnAttentionTest, OnAnA100OnlyDocumentsBackwardIsRefused) {
  if (!LoadDriver()) GTEST_SKIP() << "no libcuda.so.1, and no stub of it in the toolkit";
  DeviceDescription a100 = HopperH200();
  a100.name = "NVIDIA A100";
  a100.compute_capability = 80;
  a100.multiprocessors = 108;
  a100.shared_per_block_optin = 166912;
  const auto graphs = CudnnGraphs::ForDevice(a100);
  ASSERT_TRUE(graphs.ok()) << graphs.status();
  AttentionGraph graph{
      .shape = {.batch = 2, .sequence = 2048, .heads = 32, .head_dim = 128, .kv_heads = 8}};
  EXPECT_TRUE((*graphs)->Check(graph, AttentionPass::kForward).ok());
  EXPECT_TRUE((*graphs)->Check(graph, AttentionPass::kBackward).ok());
  graph.max_documents = 64;
  EXPECT_TRUE((*graphs)->Check(graph, AttentionPass::kForward).ok());
  const absl::Status refused = (*graphs)->Check(graph, AttentionPass::kBackward);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(refused.message(), HasSubstr("attention backward of 2 x 2048 rows"));
}

// ResNet-50's: images of 224 x 224, batch 32.
TEST(CudnnConvolutionTest, ResNetsShapesHaveEnginesAndWorkspacesOnHopper) {
  const auto graphs = Hopper();
  ASSERT_NE(graphs, nullptr);
  struct Layer {
    int64_t side, in, out, kernel, stride, padding;
  };
  for (const Layer& l :
       {Layer{224, 3, 64, 7, 2, 3}, Layer{56, 64, 64, 1, 1, 0}, Layer{56, 64, 64, 3, 1, 1},
        Layer{56, 128, 128, 3, 2, 1}, Layer{56, 256, 512, 1, 2, 0}, Layer{28, 512, 128, 1, 1, 0},
        Layer{14, 256, 256, 3, 1, 1}, Layer{7, 512, 512, 3, 1, 1}, Layer{7, 512, 2048, 1, 1, 0}}) {
    for (const DType type : {DType::kBf16, DType::kF16, DType::kF32}) {
      const ConvolutionSpec spec{.batch = 32,
                                 .height = l.side,
                                 .width = l.side,
                                 .in = l.in,
                                 .out = l.out,
                                 .kernel = l.kernel,
                                 .stride = l.stride,
                                 .padding = l.padding,
                                 .type = type};
      for (const ConvolutionPass pass : {ConvolutionPass::kForward, ConvolutionPass::kBackwardData,
                                         ConvolutionPass::kBackwardWeights}) {
        const auto bytes = graphs->WorkspaceBytes(spec, pass);
        ASSERT_TRUE(bytes.ok()) << bytes.status();
        EXPECT_EQ(*bytes % 256, 0);
        EXPECT_LT(*bytes, int64_t{1} << 30);
      }
    }
  }
}

TEST(CudnnGraphsTest, SaysWhatItRefusesAndWhy) {
  const auto graphs = Hopper();
  ASSERT_NE(graphs, nullptr);
  const ConvolutionSpec empty{.batch = 1, .height = 2, .width = 2, .in = 8, .out = 8, .kernel = 5};
  const absl::Status status = graphs->Check(empty, ConvolutionPass::kForward);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("kernel 5"));
  const ConvolutionSpec spec{.batch = 1, .height = 8, .width = 8, .in = 8, .out = 8};
  const absl::Status run =
      graphs->Convolution(spec, ConvolutionPass::kForward, {}, nullptr, nullptr);
  EXPECT_EQ(run.code(), absl::StatusCode::kFailedPrecondition) << run;
  DeviceDescription wrong = HopperH200();
  wrong.compute_capability = 0;
  const auto none = CudnnGraphs::ForDevice(wrong);
  EXPECT_TRUE(!none.ok() || !(*none)->Check(spec, ConvolutionPass::kForward).ok());
}

#endif  // MILEPOST_HAVE_CUDA

}  // namespace
}  // namespace milepost::kernels::cuda
