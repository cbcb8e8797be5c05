#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "common/spec/nearest.h"
#include "common/spec/to_yaml.h"
#include "milepost/v1/job.pb.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

TEST(NearestTest, AllowsATypoOrTwoButNoGuessing) {
  const std::vector<std::string> names = {"layers", "heads", "keep_last", "keep_every"};
  EXPECT_EQ(NearestName("layer", names), "layers");
  EXPECT_EQ(NearestName("Laeyrs", names), "layers");
  EXPECT_EQ(NearestName("keep-last", names), "keep_last");
  EXPECT_EQ(NearestName("keep_evry", names), "keep_every");
  EXPECT_EQ(NearestName("width", names), std::nullopt);
  EXPECT_EQ(NearestName("", names), std::nullopt);
  EXPECT_EQ(NearestName(std::string(1000, 'a'), names), std::nullopt);
  EXPECT_EQ(DidYouMean("head", names), "; did you mean 'heads'?");
  EXPECT_EQ(DidYouMean("zzz", names), "");
}

TEST(NearestTest, KnowsWhatOtherToolsCallIt) {
  const std::vector<std::string> train = {"steps", "precision", "batch", "optimizer"};
  EXPECT_EQ(DidYouMeanField("lr", train), "; did you mean 'train.optimizer.lr'?");
  EXPECT_EQ(DidYouMeanField("epochs", train), "; did you mean 'train.steps'?");
  EXPECT_EQ(DidYouMean("epochs", train), "");
  EXPECT_EQ(DidYouMeanField("max-steps", train), "; did you mean 'steps'?");
  EXPECT_EQ(DidYouMean("micro_batch", {"global", "micro"}), "; did you mean 'micro'?");
  EXPECT_EQ(DidYouMean("float32", {"fp32", "bf16", "fp16"}), "; did you mean 'fp32'?");
  EXPECT_EQ(DidYouMean("BFloat16", {"fp32", "bf16", "fp16"}), "; did you mean 'bf16'?");
}

// A path names a field that there is, a name one of some message or enum of the spec.
void Collect(const google::protobuf::Descriptor& type, const std::string& path,
             std::set<std::string>* names) {
  for (int i = 0; i < type.field_count(); ++i) {
    const auto* field = type.field(i);
    const std::string here = path.empty() ? field->name() : path + "." + field->name();
    names->insert(here);
    names->insert(field->name());
    if (field->message_type() != nullptr) Collect(*field->message_type(), here, names);
    if (field->enum_type() == nullptr) continue;
    for (int v = 0; v < field->enum_type()->value_count(); ++v) {
      names->insert(EnumYamlName(*field->enum_type()->value(v)));
    }
  }
}

TEST(NearestTest, TheTableOfOtherNamesNamesWhatThereIs) {
  std::set<std::string> names;
  Collect(*v1::JobSpec::descriptor(), "", &names);
  for (const OtherName& one : OtherNames()) {
    EXPECT_EQ(names.count(std::string(one.ours)), 1u) << one.other << " -> " << one.ours;
  }
}

TEST(MessageTextTest, PrintsJobsForPeopleAndPrograms) {
  v1::Job job;
  job.set_name("jobs/7");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_spec()->mutable_train()->set_precision(v1::PRECISION_BF16);
  job.mutable_create_time()->set_seconds(1'700'000'000);
  job.mutable_create_time()->set_nanos(5'000'000);
  job.mutable_progress()->set_validation_loss(std::nan(""));
  job.mutable_progress()->set_step(1'234'567'890'123);
  auto* placement = job.add_placements();
  placement->set_rank(1);
  placement->set_worker("workers/a b");
  job.add_placements();
  EXPECT_EQ(MessageToYaml(job), R"(name: jobs/7
spec:
  train:
    precision: bf16
state: RUNNING
create_time: "2023-11-14T22:13:20.005Z"
progress:
  step: 1234567890123
  validation_loss: null
placements:
  - rank: 1
    worker: "workers/a b"
  - {}
)");
  const auto json = MessageToJson(job, Absent::kPrintDefault);
  EXPECT_EQ(json["progress"]["lr"], 0.0);
  EXPECT_EQ(json["attempts"], 0);
  EXPECT_EQ(json["reason"], "UNSPECIFIED");
  EXPECT_EQ(json["placements"][1]["worker"], "");
  EXPECT_FALSE(json.contains("first_failure"));
}

TEST(MessageTextTest, InvalidUtf8NeverThrows) {
  v1::LogLine line;
  line.set_text("caf\xe9");
  EXPECT_EQ(MessageToYaml(line), "text: \"caf\xef\xbf\xbd\"\n");
}

TEST(JsonToYamlTest, NestsListsAndQuotesWhatYamlWouldMisread) {
  const auto json = nlohmann::ordered_json::parse(
      R"({"a":[[1,2],{"b":true,"c":[]}],"d":"yes","e":"1.5","f":"","g":0.1,"h":"/a/b.npy"})");
  EXPECT_EQ(JsonToYaml(json), R"(a:
  - - 1
    - 2
  - b: true
    c: []
d: "yes"
e: "1.5"
f: ""
g: 0.1
h: /a/b.npy
)");
}

}  // namespace
}  // namespace milepost
