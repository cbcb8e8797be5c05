#include "bench/control_plane/parts.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "common/check.h"
#include "common/spec/validate.h"

namespace milepost::bench {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

v1::JobSpec Spec(int ranks) {
  v1::JobSpec spec;
  spec.set_name("bench");
  v1::Gpt2Spec* model = spec.mutable_model()->mutable_gpt2();
  model->set_layers(2);
  model->set_width(64);
  model->set_heads(2);
  model->set_context(64);
  model->set_vocabulary(256);
  spec.mutable_data()->set_train("/data/train.npy");
  spec.mutable_data()->set_validation("/data/validation.npy");
  spec.mutable_train()->set_steps(1000);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  spec.mutable_train()->mutable_batch()->set_accumulation(1);
  spec.mutable_resources()->set_ranks(ranks);
  NormalizeJobSpec(&spec);
  return spec;
}

std::unique_ptr<coordinator::CoordinatorServer> Serve(const std::string& dir,
                                                      absl::Duration heartbeat) {
  std::filesystem::create_directories(dir);
  coordinator::ServerOptions options;
  options.store.dir = dir;
  options.http = "127.0.0.1:0";
  options.coordinator.config.lease = 5 * heartbeat;
  auto server = coordinator::CoordinatorServer::Start(options);
  MP_CHECK(server.ok()) << server.status().ToString();
  return *std::move(server);
}

}  // namespace milepost::bench
