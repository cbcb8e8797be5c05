// What a warp's product of tiles is on the host (context.h: MultiplyTiles), for both contexts of
// tests.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_TILES_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_TILES_H_

#include <array>
#include <cmath>
#include <cstdint>

#include "engine/kernels/cuda/context.h"

namespace milepost::kernels::cuda {

// What each lane holds of both tiles: a, then b.
using LaneWords = std::array<uint32_t, 6>;
using TileWords = std::array<LaneWords, kWarp>;

template <typename T>
float TileElement(const TileWords& tiles, int lane, int word, int k) {
  return ToFloat(T{static_cast<uint16_t>(tiles[lane][word] >> (k % 2 * 16))});
}

// Adds what is a lane's of the product.
template <typename T>
void AddTiles(const TileWords& tiles, int lane, float (&sums)[4]) {
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2;
      const float a = TileElement<T>(tiles, row % 8 * 4 + pair, row / 8 + k / 8 * 2, k);
      const float b = TileElement<T>(tiles, column * 4 + pair, 4 + k / 8, k);
      sums[i] = std::fma(a, b, sums[i]);
    }
  }
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_TILES_H_
