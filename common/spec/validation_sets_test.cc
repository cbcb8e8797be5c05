// What a spec says of further validation sets, and of an average of its weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/parse.h"
#include "common/spec/paths.h"
#include "common/spec/spec_fixture.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using v1::JobSpec;

JobSpec With(const std::function<void(JobSpec*)>& change) {
  auto spec = ParseJobSpecYaml(kSpecYaml, "f.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  change(&*spec);
  NormalizeJobSpec(&*spec);
  return *std::move(spec);
}

v1::ValidationSetSpec* AddSet(const std::string& name, const std::string& path, JobSpec* spec) {
  v1::ValidationSetSpec* set = spec->mutable_data()->add_validation_sets();
  set->set_name(name);
  set->set_path(path);
  return set;
}

TEST(ValidationSets, NamesAreOfFewLettersAndApart) {
  EXPECT_THAT(FieldsOf(With([](JobSpec* s) {
                AddSet("code", "/c.npy", s);
                AddSet("a_B-9", "/d.bin", s);
                AddSet(std::string(40, 'a'), "/e.npy", s);
              })),
              IsEmpty());
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a/b"), std::string("a@b"),
        std::string("\xc3\xa9"), std::string(41, 'a')}) {
    const JobSpec spec = With([&](JobSpec* s) { AddSet(name, "/c.npy", s); });
    EXPECT_THAT(FieldsOf(spec), ElementsAre("data.validation_sets[0].name")) << name;
  }
  const JobSpec twice = With([](JobSpec* s) {
    AddSet("a", "/c.npy", s);
    AddSet("a", "/d.npy", s);
  });
  EXPECT_THAT(ValidateJobSpec(twice).message(), AllOf(HasSubstr("data.validation_sets[1].name"),
                                                      HasSubstr("two sets are called 'a'")));
}

TEST(ValidationSets, StandBesideTheMainOne) {
  const JobSpec alone = With([](JobSpec* s) {
    s->mutable_data()->clear_validation();
    AddSet("a", "/c.npy", s);
  });
  EXPECT_THAT(ValidateJobSpec(alone).message(),
              HasSubstr("data.validation_sets: these are measured beside data.validation"));
}

TEST(ValidationSets, AreAtMostSixteen) {
  const auto of = [](int count) {
    return With([&](JobSpec* s) {
      for (int i = 0; i < count; ++i) AddSet(absl::StrCat("s", i), "/c.npy", s);
    });
  };
  EXPECT_THAT(FieldsOf(of(16)), IsEmpty());
  EXPECT_THAT(ValidateJobSpec(of(17)).message(), HasSubstr("17 sets; at most 16"));
}

TEST(ValidationSets, HaveFilesAsTheMainOneHas) {
  EXPECT_THAT(FieldsOf(With([](JobSpec* s) {
                AddSet("a", "", s);
                AddSet("b", "b.npy", s);
                AddSet("c", "/c.txt", s);
                AddSet("d", "/d.npy", s)->set_loss_mask("/d.mask");
                AddSet("e", "/e.npy", s)->set_loss_mask("/e.mask.npy");
              })),
              ElementsAre("data.validation_sets[0].path", "data.validation_sets[1].path",
                          "data.validation_sets[2].path", "data.validation_sets[3].loss_mask"));
}

TEST(ValidationSets, HaveTheLabelsOfEveryHead) {
  const auto with_heads = [](JobSpec* s) {
    for (const char* name : {"tag", "kind"}) {
      v1::TaskHeadSpec& head = *s->mutable_model()->add_heads();
      head.set_name(name);
      head.set_classes(3);
      v1::LabelSource& labels = *s->mutable_data()->add_labels();
      labels.set_head(name);
      labels.set_train(absl::StrCat("/train.", name, ".npy"));
      labels.set_validation(absl::StrCat("/validation.", name, ".npy"));
    }
  };
  const auto label = [](const char* head, const char* path, v1::ValidationSetSpec* set) {
    v1::SetLabels& labels = *set->add_labels();
    labels.set_head(head);
    labels.set_path(path);
  };
  EXPECT_THAT(FieldsOf(With([&](JobSpec* s) {
                with_heads(s);
                v1::ValidationSetSpec* set = AddSet("a", "/a.npy", s);
                label("kind", "/a.kind.npy", set);
                label("tag", "/a.tag.npy", set);
              })),
              IsEmpty());
  EXPECT_THAT(
      FieldsOf(With([&](JobSpec* s) {
        with_heads(s);
        v1::ValidationSetSpec* set = AddSet("a", "/a.npy", s);
        label("kind", "", set);
        label("kind", "/a.kind.npy", set);
        label("other", "/a.other.txt", set);
      })),
      ElementsAre("data.validation_sets[0].labels[0].path",
                  "data.validation_sets[0].labels[1].head",
                  "data.validation_sets[0].labels[2].head",
                  "data.validation_sets[0].labels[2].path", "data.validation_sets[0].labels"));
  EXPECT_THAT(FieldsOf(With([&](JobSpec* s) { label("tag", "/t.npy", AddSet("a", "/a.npy", s)); })),
              ElementsAre("data.validation_sets[0].labels[0].head"));
}

// So that relative ones are made absolute, and a worker's data roots hold.
TEST(ValidationSets, AllPathsAreKnown) {
  JobSpec spec = With([](JobSpec* s) {
    v1::ValidationSetSpec* set = AddSet("a", "/a.npy", s);
    set->set_loss_mask("/mask.npy");
    set->add_labels()->set_path("/labels.npy");
  });
  std::vector<std::string> read;
  ForEachPath(&spec, [&](absl::string_view field, PathUse use, std::string* path) {
    if (use == PathUse::kRead && absl::StrContains(field, "sets")) read.push_back(*path);
  });
  EXPECT_THAT(read, ElementsAre("/a.npy", "/mask.npy", "/labels.npy"));
}

TEST(Ema, DecaysByAFraction) {
  const auto with = [](double decay) {
    return With([&](JobSpec* s) { s->mutable_train()->mutable_ema()->set_decay(decay); });
  };
  EXPECT_THAT(FieldsOf(with(0)), IsEmpty());
  EXPECT_THAT(FieldsOf(with(0.9999)), IsEmpty());
  for (const double decay : {-0.1, 1.0, 2.0}) {
    EXPECT_THAT(FieldsOf(with(decay)), ElementsAre("train.ema.decay")) << decay;
  }
  const JobSpec absent = With([](JobSpec*) {});
  EXPECT_FALSE(absent.train().has_ema());
  const JobSpec given = With([](JobSpec* s) { s->mutable_train()->mutable_ema(); });
  EXPECT_EQ(given.train().ema().decay(), 0.999);
  EXPECT_TRUE(given.train().ema().warmup());
  // So a job may begin with the state of one without it.
  EXPECT_EQ(StateDigest(given), StateDigest(absent));
}

TEST(Ema, IsNotForAnOptimizerThatIsOffloaded) {
  const JobSpec spec = With([](JobSpec* s) {
    s->mutable_train()->mutable_ema();
    s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_NVME);
  });
  EXPECT_THAT(FieldsOf(spec), ElementsAre("train.ema"));
}

}  // namespace
}  // namespace milepost
