#include "engine/ops/attention/library_attention.h"

#include <gtest/gtest.h>

namespace milepost::ops {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

LibraryAttention Of(const LibraryAttentionSizes& sizes) {
  return LibraryAttentionOf(sizes, kAttentionCallBytes);
}

// Gradients of probabilities: heads x sequence^2, 2 bytes each.
TEST(LibraryAttention, ACallIsAsLargeAsItsScratchMayBe) {
  const LibraryAttention gpt2 = Of({.batch = 32,
                                    .sequence = 1024,
                                    .heads = 12,
                                    .kv_heads = 12,
                                    .head_dim = 64,
                                    .element_bytes = 2});
  EXPECT_TRUE(gpt2.taken);
  EXPECT_EQ(gpt2.sequences, 16);  // all 32: 768 MiB
  EXPECT_EQ(gpt2.kv_heads, 12);
  EXPECT_GE(gpt2.backward_bytes, int64_t{16} * 12 * 1024 * 1024 * 2);
  EXPECT_LT(gpt2.backward_bytes, int64_t{16} * 12 * 1024 * 1024 * 2 + (16 << 20));

  LibraryAttentionSizes llama = {.batch = 2,
                                 .sequence = 8192,
                                 .heads = 32,
                                 .kv_heads = 8,
                                 .head_dim = 128,
                                 .element_bytes = 2};
  EXPECT_EQ(Of(llama).sequences, 1);
  EXPECT_EQ(Of(llama).kv_heads, 1);  // with its 4 heads of queries: 512 MiB
  llama.sequence = 4096;
  EXPECT_EQ(Of(llama).sequences, 1);
  EXPECT_EQ(Of(llama).kv_heads, 4);
}

TEST(LibraryAttention, WhatCannotBeSplitHasABound) {
  LibraryAttentionSizes llama = {.batch = 1,
                                 .sequence = 32768,
                                 .heads = 32,
                                 .kv_heads = 8,
                                 .head_dim = 128,
                                 .element_bytes = 2};
  EXPECT_TRUE(Of(llama).taken);
  EXPECT_GE(Of(llama).backward_bytes, kMostAttentionCallBytes);
  llama.sequence += 128;
  EXPECT_FALSE(Of(llama).taken);
  // 36 documents planned for: 4.5 GiB; then 68 of 8192 positions: 34 GiB.
  llama.sequence = 4096;
  llama.documents = true;
  EXPECT_TRUE(Of(llama).taken);
  EXPECT_GE(Of(llama).backward_bytes, 9 * kGiB / 2);
  EXPECT_LT(Of(llama).backward_bytes, 6 * kGiB);
  llama.sequence = 8192;
  EXPECT_FALSE(Of(llama).taken);
}

TEST(LibraryAttention, TypesWidthsAndOffsetsThatItTakes) {
  LibraryAttentionSizes sizes = {
      .batch = 4, .sequence = 512, .heads = 4, .kv_heads = 4, .head_dim = 40, .element_bytes = 2};
  EXPECT_TRUE(Of(sizes).taken);
  sizes.documents = true;
  EXPECT_FALSE(Of(sizes).taken);  // no multiple of 16
  sizes.head_dim = 48;
  EXPECT_TRUE(Of(sizes).taken);
  sizes.element_bytes = 4;
  EXPECT_FALSE(Of(sizes).taken);
  sizes.element_bytes = 2;
  sizes.head_dim = 256;  // Gemma's
  EXPECT_TRUE(Of(sizes).taken);
  sizes.head_dim = 272;
  EXPECT_FALSE(Of(sizes).taken);
  // 2^17 rows of 6144 numbers, four heads of queries for each of keys: 3 x 2^30 offsets.
  const LibraryAttentionSizes wide = {.batch = 256,
                                      .sequence = 512,
                                      .heads = 32,
                                      .kv_heads = 8,
                                      .head_dim = 128,
                                      .element_bytes = 2,
                                      .documents = true};
  EXPECT_FALSE(Of(wide).taken);
}

}  // namespace
}  // namespace milepost::ops
