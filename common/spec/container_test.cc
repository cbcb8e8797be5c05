#include "common/spec/container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/parse.h"
#include "common/spec/path_roots.h"
#include "common/spec/paths.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"

namespace milepost {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::JobSpec ContainedJob(absl::string_view container, absl::string_view more = "") {
  auto spec = ParseJobSpecYaml(
      absl::StrCat("name: s\nscript:\n  command: [sh]\n  container: ", container, "\n", more),
      "s.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.value_or(v1::JobSpec());
}

std::string ContainerProblems(absl::string_view container, absl::string_view more = "") {
  v1::JobSpec spec = ContainedJob(container, more);
  NormalizeJobSpec(&spec);
  return std::string(ValidateJobSpec(spec).message());
}

TEST(ContainerSpecTest, MountsAreReadAsPodmanWritesThem) {
  EXPECT_EQ(*ParseContainerMount("/data"), (ContainerMount{"/data", "/data", false}));
  EXPECT_EQ(*ParseContainerMount("/data:ro"), (ContainerMount{"/data", "/data", true}));
  EXPECT_EQ(*ParseContainerMount("/a//b/:/mnt/x/:rw"), (ContainerMount{"/a/b", "/mnt/x", false}));
  EXPECT_EQ(*ParseContainerMount("/:/host:ro"), (ContainerMount{"/", "/host", true}));
  for (const char* wrong : {"", "data", "/data:mnt", "/a:/b:/c", "/a:/b:z", "/a:/b:ro:ro", ":/b",
                            "/a/../b", "/a,b", "/a\nb", "/a:/", "/", "ro", "/a:/proc", "/sys/fs",
                            "/dev/shm:ro", "/a:/run", "/a:/run/milepost/x"}) {
    EXPECT_FALSE(ParseContainerMount(wrong).ok()) << wrong;
  }
}

TEST(ContainerSpecTest, NamesThatBeginLikeTheContainersOwn) {
  EXPECT_TRUE(ParseContainerMount("/process").ok());
  EXPECT_TRUE(ParseContainerMount("/run/user").ok());
}

TEST(ContainerSpecTest, WhatIsWrongIsSaid) {
  EXPECT_EQ(ContainerProblems("{image: \"docker.io/pytorch/pytorch:2.9.0\", "
                              "mounts: [\"/data:/data:ro\", /scratch]}"),
            "");
  for (const char* image : {"localhost/a@sha256:0123", "localhost:5000/a/b:1", "ubuntu",
                            "oci-archive:/images/a.tar", "docker://quay.io/a/b:1"}) {
    EXPECT_EQ(ContainerProblems(absl::StrCat("{image: \"", image, "\"}")), "") << image;
  }
  EXPECT_THAT(ContainerProblems("{mounts: [/a]}"), HasSubstr("script.container.image: required"));
  for (const char* image : {"--privileged", "a b", "a;b", "oci-archive:"}) {
    EXPECT_THAT(ContainerProblems(absl::StrCat("{image: \"", image, "\"}")),
                HasSubstr("is no image's name"))
        << image;
  }
  EXPECT_THAT(ContainerProblems("{image: \"oci-archive:a.tar\"}"), HasSubstr("absolute path"));
  EXPECT_THAT(ContainerProblems("{image: \"ostree:/a\"}"), HasSubstr("paths are those of"));
  for (const char* image :
       {"tarball:etc/x.tar", "sif:a", "docker-daemon:a", "containers-storage:a"}) {
    EXPECT_THAT(ContainerProblems(absl::StrCat("{image: \"", image, "\"}")),
                HasSubstr("is none of docker://"))
        << image;
  }
  EXPECT_THAT(ContainerProblems("{image: a, mounts: [data]}"),
              HasSubstr("script.container.mounts: 'data' must be an absolute path"));
  EXPECT_THAT(ContainerProblems("{image: a, mounts: [\"/a:/x\", \"/b:/x/\"]}"),
              HasSubstr("two of them are at /x"));
  std::string many = "/0";
  for (int i = 1; i < 65; ++i) absl::StrAppend(&many, ", /", i);
  EXPECT_THAT(ContainerProblems(absl::StrCat("{image: a, mounts: [", many, "]}")),
              HasSubstr("has 65; at most 64"));
}

TEST(ContainerSpecTest, WhatAScriptOnTheHostHasIsNotForContainers) {
  EXPECT_THAT(ContainerProblems("{image: a}", "  folder: /work\n  requirements: r.txt\n"),
              HasSubstr("the image of script.container has to have them"));
  EXPECT_THAT(ContainerProblems("{image: a}", "  folder: \"/work:1\"\n"),
              HasSubstr("a container cannot have a folder with ':'"));
  EXPECT_THAT(ContainerProblems("{image: a}", "  folder: /\n"), HasSubstr("the image's own"));
}

// It may be written: only where a job may write.
TEST(ContainerSpecTest, TheFolderIsToBeWritten) {
  for (const bool contained : {false, true}) {
    v1::JobSpec spec;
    spec.mutable_script()->set_folder("/work");
    if (contained) spec.mutable_script()->mutable_container()->set_image("a");
    PathUse found = PathUse::kRead;
    ForEachPath(&spec, [&](absl::string_view field, PathUse use, std::string* path) {
      if (field == "script.folder") found = use;
    });
    EXPECT_EQ(found == PathUse::kWrite, contained);
  }
}

TEST(ContainerSpecTest, PathsOfTheHostAreFoundAndChanged) {
  v1::JobSpec spec = ContainedJob(
      "{image: \"oci-archive:a.tar\", mounts: [\"b:/b:ro\", \"c:/c\", \"d:rw\", \":/e\"]}");
  std::vector<std::string> seen;
  ForEachPath(&spec, [&](absl::string_view field, PathUse use, std::string* path) {
    if (!absl::StartsWith(field, "script.container")) return;
    seen.push_back(absl::StrCat(field.substr(17), use == PathUse::kRead ? " r " : " w ", *path));
    if (!path->empty()) *path = "/f/" + *path;
  });
  EXPECT_THAT(seen,
              ElementsAre("image r a.tar", "mounts r b", "mounts w c", "mounts w d", "mounts w "));
  EXPECT_EQ(spec.script().container().image(), "oci-archive:/f/a.tar");
  EXPECT_THAT(spec.script().container().mounts(),
              ElementsAre("/f/b:/b:ro", "/f/c:/c", "/f/d:rw", ":/e"));
}

TEST(ContainerSpecTest, MountsLieWhereTheOperatorAllows) {
  const PathRoots roots = {.write = {"/srv/write"}, .data = {"/srv/data"}};
  const auto why = [&](const char* mount) {
    return std::string(
        CheckPaths(ContainedJob(absl::StrCat("{image: a, mounts: [\"", mount, "\"]}")), roots)
            .message());
  };
  EXPECT_EQ(why("/srv/data/x:/x:ro"), "");
  EXPECT_EQ(why("/srv/write/x:/x"), "");
  EXPECT_THAT(why("/srv/data/x:/x"), HasSubstr("--write-roots"));
  EXPECT_THAT(why("/etc:/srv/data:ro"), HasSubstr("script.container.mounts: /etc is not in"));
}

TEST(ContainerSpecTest, IsWrittenAsItIsRead) {
  const v1::JobSpec spec = ContainedJob("{image: \"a/b:1\", mounts: [\"/a:/b:ro\"]}");
  EXPECT_EQ(MessageToYaml(ContainedJob("{image: \"a/b:1\", mounts: [\"/a:/b:ro\"]}")),
            MessageToYaml(*ParseJobSpecYaml(MessageToYaml(spec), "t.yaml")));
  v1::JobSpec other = spec;
  other.mutable_script()->mutable_container()->set_image("a/b:2");
  EXPECT_NE(LineageDigest(spec), LineageDigest(other));
}

}  // namespace
}  // namespace milepost
