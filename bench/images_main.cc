// Training samples out of an image folder: read, decode, random resized crop, flip, by one thread
// or several. Prints one line of JSON: samples per second of processor time, over all threads.
// bench/images_vs_torch compares it with torchvision.
//
//   build/release/bench/images --data imagenet/train --size 224 --threads 1 --samples 2000
#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <string>

#include "engine/data/images/image_source.h"
#include "engine/data/prefetcher.h"

int main(int argc, char** argv) {
  std::string path;
  int64_t size = 224, samples = 2000, batch = 32;
  int threads = 1;
  CLI::App app("Decoding of training images");
  app.add_option("--data", path, "image folder, shards or .npy")->required();
  app.add_option("--size", size, "sides of the samples");
  app.add_option("--samples", samples, "samples to measure");
  app.add_option("--batch", batch, "samples per micro-batch");
  app.add_option("--threads", threads, "decoding threads");
  CLI11_PARSE(app, argc, argv);

  using milepost::data::ImageSource;
  milepost::data::ImageSourceOptions options;
  options.view.image_size = size;
  const auto source = ImageSource::Open(path, options);
  if (!source.ok()) {
    std::fprintf(stderr, "%s\n", source.status().ToString().c_str());
    return 1;
  }
  milepost::data::Prefetcher prefetcher(*source, {.micro_batch = batch},
                                        milepost::data::ForThreads(threads, batch));
  prefetcher.Start(0);
  int64_t done = 0;
  std::clock_t start = 0;
  for (int64_t i = -4; done < samples; ++i) {  // the first ones warm caches and buffers
    if (i == 0) start = std::clock();
    const auto got = prefetcher.Next();
    if (!got.ok()) {
      std::fprintf(stderr, "%s\n", got.status().ToString().c_str());
      return 1;
    }
    if (i >= 0) done += batch;
  }
  // Of all threads: what a core that does nothing else would take.
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  const auto stats = (*source)->stats();
  std::printf("{\"images_per_second\": %.1f, \"bytes_per_image\": %.0f}\n",
              static_cast<double>(done) / seconds,
              static_cast<double>(stats.bytes_read) / static_cast<double>(stats.samples));
  return 0;
}
