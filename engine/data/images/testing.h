// Files for the tests of this folder.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_TESTING_H_
#define MILEPOST_ENGINE_DATA_IMAGES_TESTING_H_

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace milepost::data {

inline constexpr char kGoldenImages[] = "tests/golden/images/";  // made by make_images.py
inline constexpr int64_t kGoldenWidth = 75;
inline constexpr int64_t kGoldenHeight = 53;

inline std::string ReadFileForTest(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
inline std::string Golden(const std::string& name) { return ReadFileForTest(kGoldenImages + name); }

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_TESTING_H_
