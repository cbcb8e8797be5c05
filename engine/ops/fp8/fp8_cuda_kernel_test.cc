#include "engine/ops/fp8/fp8_cuda_kernel.h"
#include "engine/ops/fp8/fp8_cpu_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/fp8/fp8_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

std::vector<uint8_t> BitsOf(const auto& codes) {
  std::vector<uint8_t> bits;
  for (const auto code : codes) bits.push_back(code.bits);
  return bits;
}

std::vector<float> RecordOf(float largest, float amax) {
  std::vector<float> record(kScalingFloats);
  InitializeScaling(largest, record.data());
  SetScale(amax, record.data());
  return record;
}

// Several matrices on each other, of ragged sizes, and more tiles than slots.
template <typename Code>
void TestQuantize(const std::vector<int64_t>& part_rows, int64_t columns, bool plain, bool turned) {
  int64_t rows = 0;
  for (const int64_t part : part_rows) rows += part;
  std::vector<std::unique_ptr<HostArray<bf16>>> parts;
  std::vector<std::vector<bf16>> values;
  Stacked host{.rows = rows, .columns = columns}, device = host;
  int64_t first_row = 0;
  for (size_t i = 0; i < kMostStacked; ++i) {
    host.first_row[i] = device.first_row[i] = i < part_rows.size() ? first_row : rows;
    if (i >= part_rows.size()) continue;
    values.push_back(RandomVector<bf16>(part_rows[i] * columns, 17 + i));
    values.back()[5] = ToBf16(i == 0 ? NAN : INFINITY);
    parts.push_back(std::make_unique<HostArray<bf16>>(values.back()));
    host.parts[i] = values.back().data();
    device.parts[i] = parts.back()->data();
    first_row += part_rows[i];
  }
  const std::vector<float> record = RecordOf(kLargestOf<Code>, 0.1F);
  HostArray<float> device_record(record);
  for (const bool first : {true, false}) {
    std::vector<float> slots(kAmaxSlots, first ? NAN : 0.25F);
    HostArray<float> device_slots(slots);
    std::vector<Code> codes(rows * columns), codes_t(rows * columns);
    HostArray<Code> device_codes(codes), device_codes_t(codes_t);
    Quantize(host, record.data(), first, plain ? codes.data() : nullptr,
             turned ? codes_t.data() : nullptr, slots.data());
    RunKernel(QuantizeKernel<Code>{device, device_record.data(), first,
                                   plain ? device_codes.data() : nullptr,
                                   turned ? device_codes_t.data() : nullptr, device_slots.data()});
    EXPECT_EQ(BitsOf(device_codes.values()), BitsOf(codes));
    EXPECT_EQ(BitsOf(device_codes_t.values()), BitsOf(codes_t));
    EXPECT_TRUE(SameBits(device_slots.values(), slots));
  }
}

TEST(Fp8Kernels, QuantizeAsTheCpu) {
  TestQuantize<e4m3>({16}, 16, true, true);
  TestQuantize<e4m3>({48, 16, 96}, 80, true, true);
  TestQuantize<e5m2>({112}, 144, true, false);
  TestQuantize<e5m2>({80, 64}, 64, false, true);
  TestQuantize<e4m3>({16}, 64 * 1100, false, false);  // more tiles than slots
}

// Every bf16 number, at scales that bring small and large ones to the codes' ends: the device's
// instruction rounds, saturates and treats what is not finite as the CPU's text does.
template <typename Code>
void TestEveryNumber(float amax) {
  constexpr int64_t kSide = 256;
  std::vector<bf16> every(kSide * kSide);
  for (size_t i = 0; i < every.size(); ++i) every[i] = {static_cast<uint16_t>(i)};
  HostArray<bf16> numbers(every);
  Stacked host{.rows = kSide, .columns = kSide}, device = host;
  for (size_t i = 1; i < kMostStacked; ++i) host.first_row[i] = device.first_row[i] = kSide;
  host.parts[0] = every.data();
  device.parts[0] = numbers.data();
  const std::vector<float> record = RecordOf(kLargestOf<Code>, amax);
  HostArray<float> device_record(record);
  std::vector<float> slots(kAmaxSlots, 0.0F);
  std::vector<Code> codes(kSide * kSide);
  HostArray<float> device_slots(slots);
  HostArray<Code> device_codes(codes);
  Quantize<Code>(host, record.data(), true, codes.data(), nullptr, slots.data());
  RunKernel(QuantizeKernel<Code>{device, device_record.data(), true, device_codes.data(), nullptr,
                                 device_slots.data()});
  EXPECT_EQ(BitsOf(device_codes.values()), BitsOf(codes));
}

TEST(Fp8Kernels, QuantizeEveryNumber) {
  for (const float amax : {1e-6F, 1.0F, 500.0F, 3e38F}) {
    TestEveryNumber<e4m3>(amax);
    TestEveryNumber<e5m2>(amax);
  }
}

TEST(Fp8Kernels, CalibrateFromTheSlots) {
  std::vector<float> slots(kAmaxSlots, 0.0F);
  for (const float amax : {3.0F, 0.0F, INFINITY}) {
    slots[200] = amax;
    std::vector<float> want = RecordOf(kLargestE5M2, 17);
    want[kFirstAmax + 3] = 5;
    HostArray<float> record(want), device_slots(slots);
    SetScale(amax, want.data());
    RunKernel(CalibrateScalingKernel{device_slots.data(), record.data()});
    EXPECT_EQ(record.values(), want) << amax;
  }
}

TEST(Fp8Kernels, UpdateScalingsAsTheCpu) {
  constexpr int64_t kTensors = 5, kRanks = 3;
  std::vector<float> want;
  for (int t = 0; t < kTensors; ++t) {
    const std::vector<float> record = RecordOf(t % 2 == 0 ? kLargestE4M3 : kLargestE5M2, 1);
    want.insert(want.end(), record.begin(), record.end());
  }
  HostArray<float> records(want);
  for (int step = 0; step < 2 * kAmaxHistory + 3; ++step) {
    std::vector<float> slots(kTensors * kAmaxSlots, 0.0F), gathered;
    for (int t = 0; t < kTensors; ++t) {
      slots[t * kAmaxSlots + (step * 37 + t) % kAmaxSlots] =
          t == 4 && step % 5 == 1 ? INFINITY : std::exp(std::sin(step * 1.7F + t) * 20);
    }
    HostArray<float> device_slots(slots), amaxes(kTensors);
    RunKernel(CollectAmaxesKernel{device_slots.data(), kTensors, amaxes.data()});
    for (int rank = 0; rank < kRanks; ++rank) {
      for (const float amax : amaxes.values()) {
        gathered.push_back(rank == step % kRanks ? amax : amax / 2);
      }
    }
    HostArray<float> device_gathered(gathered);
    HostArray<UpdateControl> control({UpdateControl{1.0F, step % 4 == 2 ? 1U : 0U}});
    RunKernel(UpdateScalingsKernel{device_gathered.data(), kRanks, kTensors, control.data(),
                                   records.data()});
    if (step % 4 == 2) {  // skipped
      ASSERT_EQ(records.values(), want) << "step " << step;
      continue;
    }
    for (int t = 0; t < kTensors; ++t) {
      UpdateScaling(AmaxOf(slots.data() + t * kAmaxSlots), want.data() + t * kScalingFloats);
    }
    ASSERT_EQ(records.values(), want) << "step " << step;
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
