#include "engine/ops/attention/attention_cuda_kernel-inl.h"

#include "engine/ops/attention/attention_cpu_kernel.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cuda/testing/run_kernel.h"

namespace milepost::kernels::cuda {
namespace {

constexpr auto kRunAttention = [](const auto& kernel) { return RunAnywhere(kernel, 6); };

// Both start from the CPU's out and lse, so that the backward is compared by itself. Within the
// tensor's tolerance: in bf16 the CPU also rounds probabilities.
template <typename T>
void TestAttention(const AttentionShape& s, const std::vector<int32_t>& documents = {}) {
  SCOPED_TRACE(testing::Message() << "B" << s.batch << " T" << s.sequence << " H" << s.heads << " D"
                                  << s.head_dim << " G" << s.kv_heads << " bytes " << sizeof(T)
                                  << " part " << s.queries.part << " of " << s.queries.parts
                                  << " documents " << documents.size());
  const int64_t kv_heads = s.kv_heads == 0 ? s.heads : s.kv_heads;
  const int64_t n = s.batch * s.sequence * (s.heads + 2 * kv_heads) * s.head_dim;
  const int64_t outputs = s.batch * s.sequence * s.heads * s.head_dim;
  const auto packed = RandomVector<T>(n, 1), gradient = RandomVector<T>(outputs, 2);
  std::vector<T> want(outputs), want_dqkv(n);
  std::vector<float> want_lse(s.batch * s.heads * s.sequence);
  const int32_t* ids = documents.empty() ? nullptr : documents.data();
  AlignedBuffer forward(AttentionForwardWorkspaceBytes(s, kDTypeOf<T>, MaxThreads()));
  AlignedBuffer backward(AttentionBackwardWorkspaceBytes(s, kDTypeOf<T>, MaxThreads()));
  kernels::AttentionForward(s, packed.data(), ids, want.data(), want_lse.data(), forward.data());
  kernels::AttentionBackward(s, packed.data(), ids, want.data(), want_lse.data(), gradient.data(),
                             want_dqkv.data(), backward.data());
  // All is written, zeros too.
  const std::vector<T> none(outputs, FromFloat<T>(NAN)), no_gradient(n, FromFloat<T>(NAN));
  const std::vector<float> no_lse(want_lse.size(), NAN);
  HostArray<T> qkv(packed), d_out(gradient), out(none), dqkv(no_gradient), saved(want);
  HostArray<float> lse(no_lse), saved_lse(want_lse), delta(want_lse.size());
  HostArray<int32_t> id_array(documents);
  ids = documents.empty() ? nullptr : id_array.data();
  const absl::Status ran =
      RunAttentionForward(s, qkv.data(), ids, out.data(), lse.data(), kRunAttention);
  ASSERT_TRUE(ran.ok()) << ran;
  ExpectClose(out.values(), ToDouble(want), kTolerance<T>, "out");
  ExpectClose(lse.values(), ToDouble(want_lse), 2e-5, "lse");
  const absl::Status back =
      RunAttentionBackward(s, qkv.data(), ids, saved.data(), saved_lse.data(), d_out.data(),
                           dqkv.data(), delta.data(), kRunAttention);
  ASSERT_TRUE(back.ok()) << back;
  ExpectClose(dqkv.values(), ToDouble(want_dqkv), kTolerance<T>, "dqkv");
}

TEST(AttentionKernels, OddSizesAreTheCpus) {
  TestAttention<float>({2, 7, 2, 8});
  TestAttention<bf16>({1, 67, 2, 64});
  TestAttention<f16>({1, 1, 1, 16});
  TestAttention<float>({1, 37, 1, 72});
  TestAttention<bf16>({1, 34, 1, 128});
  TestAttention<float>({1, 18, 1, 256});
}

TEST(AttentionKernels, SharedKeys) {
  TestAttention<float>({1, 35, 4, 24, 2});
  TestAttention<bf16>({1, 40, 3, 80, 1});
}

TEST(AttentionKernels, NotCausal) {
  TestAttention<float>({1, 70, 1, 32, 0, false});
  TestAttention<f16>({1, 33, 2, 136, 1, false});
}

TEST(AttentionKernels, Windows) {
  for (int64_t window : {1, 9, 32, 33, 69, 100}) {
    TestAttention<float>({1, 70, 2, 16, 1, true, window});
  }
  TestAttention<bf16>({1, 100, 1, 72, 1, true, 40});
  TestAttention<f16>({1, 67, 1, 136, 1, true, 5});
  std::vector<int32_t> ids(70);
  for (int i = 0; i < 70; ++i) ids[i] = i < 3 ? 0 : i < 40 ? 1 : 4;
  TestAttention<float>({1, 70, 2, 16, 1, true, 20}, ids);
}

TEST(AttentionKernels, Documents) {
  std::vector<int32_t> ids(2 * 70);  // blocks of queries that begin behind the first keys
  for (int i = 0; i < 70; ++i) {
    ids[i] = i < 3 ? 0 : i < 40 ? 1 : i < 67 ? 4 : 5;
    ids[70 + i] = i / 14;
  }
  TestAttention<float>({2, 70, 2, 16, 1, true}, ids);
  TestAttention<bf16>({2, 70, 1, 16, 1, false}, ids);
  ids.resize(70);
  TestAttention<float>({1, 70, 1, 136, 1, false}, ids);
}

// Blocks that end within tiles of either kernel, more of them than parts, and fewer.
TEST(AttentionKernels, PartsOfQueries) {
  std::vector<int32_t> ids(2 * 300);
  for (int i = 0; i < 600; ++i) ids[i] = i / 90;
  for (const QueryPart queries : {QueryPart{2, 0}, QueryPart{2, 1}, QueryPart{3, 2}, {9, 8}}) {
    TestAttention<float>({2, 300, 2, 16, 1, true, 0, queries}, ids);
    TestAttention<float>({1, 150, 1, 136, 1, false, 0, queries});
    TestAttention<bf16>({1, 200, 1, 72, 1, true, 40, queries});
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
