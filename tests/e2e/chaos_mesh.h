// The mesh that chaos_test trains over, and a job for it.
//
//   Mesh mesh;
//   const std::string wrong = ParseMesh("data=2,tensor=2,pipeline=2", &mesh);  // "": nothing
//   v1::JobSpec spec = MeshJob(folder, /*steps=*/80, mesh);                    // of 8 ranks
#ifndef MILEPOST_TESTS_E2E_CHAOS_MESH_H_
#define MILEPOST_TESTS_E2E_CHAOS_MESH_H_

#include <cstdint>
#include <string>

#include "milepost/v1/job_spec.pb.h"

namespace milepost::e2e {

struct Mesh {
  int data = 2, tensor = 1, pipeline = 1, context = 1;

  int Ranks() const { return data * tensor * pipeline * context; }
};

// Reads a comma-separated list of data, tensor, pipeline and context, each with a number; what is
// left out is 1. Returns what is wrong with it. Empty: nothing is. Two workers share the ranks, so
// that their number is even; it is at most 8.
std::string ParseMesh(const std::string& text, Mesh* mesh);

// SmallJob, of a model and a batch that the mesh divides. A stage has twice as many micro-batches
// as there are stages. Two data ranks alone train SmallJob itself.
v1::JobSpec MeshJob(const std::string& folder, int64_t steps, const Mesh& mesh);

}  // namespace milepost::e2e

#endif  // MILEPOST_TESTS_E2E_CHAOS_MESH_H_
