#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

void ImagePatches(const Run& run) {
  const graph::ImageAttributes& a = run.op.attributes.image;
  const int64_t height = run.dim(0, 1), width = run.dim(0, 2), channels = run.dim(0, 3);
  Array rows;
  for (int64_t image = 0; image < run.dim(0, 0); ++image) {
    for (int64_t top = 0; top < height; top += a.kernel) {
      for (int64_t left = 0; left < width; left += a.kernel) {
        for (int64_t c = 0; c < channels; ++c) {
          for (int64_t i = 0; i < a.kernel * a.kernel; ++i) {
            const int64_t y = top + i / a.kernel, x = left + i % a.kernel;
            const double byte = run.in(0)[((image * height + y) * width + x) * channels + c];
            rows.push_back((byte / 255 - a.mean[c]) / a.deviation[c]);
          }
        }
      }
    }
  }
  run.Write(0, rows);
}

void PatchTokens(const Run& run) {
  const Array &rows = run.in(0), &cls = run.in(1), &positions = run.in(2);
  const int64_t width = run.dim(0, 1), tokens = run.dim(2, 1);
  Array x;
  for (int64_t at = 0, from = 0; at < run.op.attributes.batch * tokens; ++at) {
    const bool is_class = at % tokens == 0;
    for (int64_t c = 0; c < width; ++c) {
      x.push_back((is_class ? cls[c] : rows[from + c]) + positions[at % tokens * width + c]);
    }
    if (!is_class) from += width;
  }
  run.Write(0, x);
}

void PatchTokensBackward(const Run& run) {
  const int64_t width = run.dim(0, 1);
  const int64_t tokens = run.dim(0, 0) / run.op.attributes.batch;
  Array drows, dcls(width, 0.0), dpositions(tokens * width, 0.0);
  for (int64_t at = 0; at < run.dim(0, 0); ++at) {
    for (int64_t c = 0; c < width; ++c) {
      const double dx = run.in(0)[at * width + c];
      dpositions[at % tokens * width + c] += dx;
      if (at % tokens == 0) {
        dcls[c] += dx;
      } else {
        drows.push_back(dx);
      }
    }
  }
  run.Write(0, drows);
  run.Write(1, dcls);
  run.Write(2, dpositions);
}

// Calls fn(element of all rows, element of the first ones), which are `first` elements in all.
template <typename Fn>
void ForFirstRows(int64_t all, int64_t first, int64_t images, Fn fn) {
  const int64_t width = first / images, step = all / images;
  for (int64_t i = 0; i < first; ++i) fn(i / width * step + i % width, i);
}

void FirstRows(const Run& run) {
  Array y(graph::Elements(run.out_shape(0)));
  ForFirstRows(static_cast<int64_t>(run.in(0).size()), static_cast<int64_t>(y.size()),
               run.out_shape(0)[0], [&](int64_t from, int64_t to) { y[to] = run.in(0)[from]; });
  run.Write(0, y);
}

void FirstRowsBackward(const Run& run) {
  Array dx(graph::Elements(run.out_shape(0)), 0.0);
  ForFirstRows(static_cast<int64_t>(dx.size()), static_cast<int64_t>(run.in(0).size()),
               run.dim(0, 0), [&](int64_t to, int64_t from) { dx[to] = run.in(0)[from]; });
  run.Write(0, dx);
}

}  // namespace

constinit const Rule kImagePatches = ImagePatches;
constinit const Rule kPatchTokens = PatchTokens;
constinit const Rule kPatchTokensBackward = PatchTokensBackward;
constinit const Rule kFirstRows = FirstRows;
constinit const Rule kFirstRowsBackward = FirstRowsBackward;

}  // namespace milepost::ops::reference
