// SPDX-License-Identifier: Apache-2.0
// Runs the built program and looks at what a user sees: exit status, stdout, stderr.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Result {
  int status = -1;
  std::string out;
  std::string err;

  [[nodiscard]] Json json() const { return Json::parse(out); }
};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "headrace_cli_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      throw std::runtime_error("mkdtemp failed");
    }
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  fs::path path_;
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// At assumed rates, unless `arguments` say otherwise: measuring takes a second, which only tests of it should wait
/// for.
std::string with_profile(const std::string& arguments) {
  for (const std::string command : {"route", "prefill"}) {
    if (arguments.starts_with(command + " ") && arguments.find("--profile") == std::string::npos &&
        arguments.find("--help") == std::string::npos) {
      return command + " --profile nominal" + arguments.substr(command.size());
    }
  }
  return arguments;
}

/// What is measured in spite of it is kept in a folder of the run's own.
Result run(const std::string& arguments) {
  const TemporaryFolder folder;
  const fs::path err = folder.path() / "stderr";
  const std::string command = "XDG_CACHE_HOME=" + folder.path().string() + " " + HEADRACE_BINARY + " " +
                              with_profile(arguments) + " 2>" + err.string();
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    throw std::runtime_error("popen failed");
  }
  Result result;
  std::array<char, 4096> buffer{};
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    result.out.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.err = read_file(err);
  return result;
}

std::string recording(const std::string& name) { return std::string(HEADRACE_TEST_DATA) + "/recordings/" + name; }

const std::vector<std::string> kRecordings{"deepseek_v32", "glm5_next", "glm_moe_dsa", "glm_moe_dsa_8heads"};

/// A recorded model whose configuration `change` has changed; weights and recording are linked.
template <class Change>
void copy_model(const std::string& name, const fs::path& folder, const Change& change) {
  for (const char* file : {"model.safetensors", "recording.safetensors"}) {
    fs::create_symlink(fs::absolute(fs::path(recording(name)) / file), folder / file);
  }
  Json config = Json::parse(read_file(fs::path(recording(name)) / "config.json"));
  change(config);
  write_file(folder / "config.json", config.dump());
}

/// A folder with a recorded model's config.json and no weights.
void copy_config(const std::string& name, const fs::path& folder) {
  fs::copy_file(fs::path(recording(name)) / "config.json", folder / "config.json");
}

/// Checks an Error on stderr and, with --json, on stdout.
void expect_error(const std::string& arguments, int status) {
  SCOPED_TRACE(arguments);
  const Result plain = run(arguments);
  EXPECT_EQ(plain.status, status);
  EXPECT_EQ(plain.out, "");
  EXPECT_EQ(plain.err.substr(0, 10), "headrace: ") << plain.err;
  EXPECT_EQ(std::count(plain.err.begin(), plain.err.end(), '\n'), 1) << plain.err;
  const Result json = run(arguments + " --json");
  EXPECT_EQ(json.status, status);
  const Json document = json.json();
  EXPECT_EQ(document.at("schema"), 1);
  for (const char* field : {"argument", "expected", "actual"}) {
    EXPECT_TRUE(document.at("error").at(field).is_string()) << field;
  }
}

// ---- help, version, models ------------------------------------------------------------------------------------------

TEST(Cli, HelpHasExamplesForEveryCommand) {
  const Result main = run("--help");
  EXPECT_EQ(main.status, 0);
  for (const char* command : {"models", "route", "prefill", "verify"}) {
    EXPECT_NE(main.out.find(command), std::string::npos) << command;
    const Result help = run(std::string(command) + " --help");
    EXPECT_EQ(help.status, 0);
    EXPECT_NE(help.out.find("Examples:\n  headrace " + std::string(command)), std::string::npos) << help.out;
    EXPECT_NE(help.out.find("--json"), std::string::npos);
    EXPECT_EQ(help.err, "");
  }
}

TEST(Cli, Version) {
  const Result plain = run("--version");
  EXPECT_EQ(plain.status, 0);
  EXPECT_EQ(plain.out.substr(0, 9), "headrace ");
  EXPECT_NE(plain.out.find("commit"), std::string::npos);
  EXPECT_NE(plain.out.find("cpu: dense_mha masked_mha topk_mqa"), std::string::npos);
  const Json json = run("--version --json").json();
  EXPECT_EQ(json.at("schema"), 1);
  EXPECT_TRUE(json.at("version").is_string());
  EXPECT_TRUE(json.at("commit").is_string());
  EXPECT_EQ(json.at("kernels").at(0).at("device"), "cpu");
}

TEST(Cli, ModelsListsThePresets) {
  const Result plain = run("models");
  EXPECT_EQ(plain.status, 0);
  const Json models = run("models --json").json().at("models");
  EXPECT_GE(models.size(), 6U);
  bool found = false;
  for (const Json& model : models) {
    EXPECT_NE(plain.out.find(model.at("name").get<std::string>()), std::string::npos);
    if (model.at("name") == "glm-5.3-flash") {
      found = true;
      EXPECT_EQ(model.at("model_type"), "glm5_next");
      EXPECT_EQ(model.at("layers").at("sparse_attention"), 11);
      EXPECT_EQ(model.at("layers").at("linear_attention"), 34);
      EXPECT_EQ(model.at("geometry").at("num_heads"), 64);
      EXPECT_EQ(model.at("geometry").at("qk_rope_head_dim"), 0);
      EXPECT_EQ(model.at("indexer").at("topk"), 2048);
      EXPECT_EQ(model.at("indexer").at("pool"), 4);
      EXPECT_EQ(model.at("cache_bytes_per_token"), 1024);
    }
  }
  EXPECT_TRUE(found);
}

// ---- route ----------------------------------------------------------------------------------------------------------

TEST(Cli, RouteJsonHasItsSchema) {
  const Result result = run("route --model glm-5.3-flash --tp 4 --batch 2048,1x3000+1096,4x1+8k --json");
  ASSERT_EQ(result.status, 0) << result.err;
  const Json document = result.json();
  EXPECT_EQ(document.at("schema"), 1);
  EXPECT_EQ(document.at("device"), "cpu");
  EXPECT_EQ(document.at("geometry"), Json({{"num_heads", 16},
                                           {"kv_lora_rank", 512},
                                           {"qk_nope_head_dim", 256},
                                           {"qk_rope_head_dim", 0},
                                           {"v_head_dim", 256}}));
  EXPECT_GT(document.at("workspace_bytes"), 0);
  ASSERT_EQ(document.at("requests").size(), 6U);
  for (const Json& request : document.at("requests")) {
    std::set<std::string> paths{request.at("path").get<std::string>()};
    EXPECT_GT(request.at("predicted_ms"), 0.0);
    EXPECT_FALSE(request.at("reason").get<std::string>().empty());
    for (const Json& other : request.at("alternatives")) {
      paths.insert(other.at("path").get<std::string>());
      EXPECT_EQ(other.at("predicted_ms").is_null(), !other.at("unmet").empty());
    }
    EXPECT_EQ(paths, (std::set<std::string>{"dense_mha", "masked_mha", "topk_mqa"}));
  }
  const Json& first = document.at("requests").at(0);
  EXPECT_EQ(first.at("request"), 0);
  EXPECT_EQ(first.at("query_len"), 2048);
  EXPECT_EQ(first.at("context_len"), 0);
  EXPECT_EQ(first.at("skip_scoring"), true);
  EXPECT_EQ(document.at("requests").at(5).at("context_len"), 8192);
  EXPECT_EQ(document.at("requests").at(5).at("skip_scoring"), false);
}

bool dense_can_run(const Json& request) {
  for (const Json& other : request.at("alternatives")) {
    if (other.at("path") == "dense_mha") {
      return other.at("unmet").empty();
    }
  }
  return request.at("path") == "dense_mha";
}

TEST(Cli, RouteKnowsTheEdgesOfCoverage) {
  const auto dense = [](const std::string& arguments) {
    std::vector<bool> able;
    const Json document = run("route " + arguments + " --json").json();
    for (const Json& request : document.at("requests")) {
      able.push_back(dense_can_run(request));
    }
    return able;
  };
  EXPECT_EQ(dense("--model glm-5 --batch 2048,2049,1+2047,1+2048"), (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(dense("--model glm-5.3-flash --batch 2051,2052"), (std::vector<bool>{true, false}));
  EXPECT_EQ(dense("--model deepseek-v3 --batch 64k"), (std::vector<bool>{true}));
  EXPECT_EQ(dense("--model glm-5 --batch 16 --selection drift:0.9"), (std::vector<bool>{false}));
}

TEST(Cli, RouteGroupsEqualRequests) {
  const Result result = run("route --model glm-5 --batch 2048,64x1+32k");
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.out.find("64 x 1+32768"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("1+32768", result.out.find("1+32768") + 1), std::string::npos) << result.out;
}

TEST(Cli, AForcedPathThatCannotRunIsStatus1) {
  expect_error("route --model glm-5 --batch 16,4k --force dense_mha", 1);
  expect_error("prefill --model glm-5 --batch 16,4k --force dense_mha", 1);
  EXPECT_EQ(run("route --model glm-5 --batch 16,4k --force masked_mha").status, 0);
}

TEST(Cli, AForcedPathThatCannotRunIsNamedWithTheRequest) {
  const Result result = run("route --model glm-5 --batch 16,1k+3000 --force dense_mha");
  EXPECT_EQ(result.err.substr(0, 67), "headrace: --force: dense_mha cannot serve request 1 (1024+3000): li")
      << result.err;
  expect_error("route --model glm-5 --batch 16 --force dense_mha --workspace-limit 1KiB", 1);
  expect_error("prefill --model glm-5 --batch 16 --force dense_mha --workspace-limit 1KiB", 1);
}

TEST(Cli, ALowWorkspaceLimitIsNamedAsTheUserKnowsIt) {
  const Result result = run("route --model glm-5 --batch 4k --workspace-limit 1KiB");
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.err.substr(0, 28), "headrace: --workspace-limit:") << result.err;
}

TEST(Cli, RouteShowsASplitRequestInNarrowLines) {
  const Result result = run("route --model glm-5.3-flash --tp 4 --threads 2 --batch 16k");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("dense_mha [0, 2051) "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("topk_mqa [2051, 16384) "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("1 request, 16384 new tokens"), std::string::npos) << result.out;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 120U) << line;
  }
}

TEST(Cli, RequestsBeyondTheModelsPositionsAreNoted) {
  const Result within = run("route --model deepseek-v3.2 --batch 1+1k");
  EXPECT_EQ(within.err, "");
  const Result beyond = run("route --model deepseek-v3.2 --batch 1,1+1000k --json");
  EXPECT_EQ(beyond.status, 0);
  EXPECT_NE(beyond.err.find("request 1+1024000 is longer than"), std::string::npos) << beyond.err;
}

TEST(Cli, RatesComeFromTheProfileNamed) {
  const std::string route = "route --model glm-5 --batch 4k --profile ";
  const Json nominal = run(route + "nominal --json").json();
  EXPECT_EQ(nominal.at("profile"), "nominal");
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "profile.json";
  Json profile = {{"schema", 1},           {"name", "slow"},         {"compute", "bfloat16"}, {"threads", 1},
                  {"product_gflops", 1.0}, {"mha_gflops", 1.0},      {"mqa_gflops", 1.0},     {"gather_mkeys", 1.0},
                  {"mask_gkeys", 1.0},     {"bandwidth_gbytes", 1.0}};
  write_file(file, profile.dump());
  const Json slow = run(route + file.string() + " --json").json();
  EXPECT_EQ(slow.at("profile"), "slow");
  EXPECT_GT(slow.at("predicted_ms"), nominal.at("predicted_ms"));
  profile["mha_gflops"] = 0.0;
  write_file(file, profile.dump());
  expect_error(route + file.string(), 2);
  expect_error(route + "no_such_file", 2);
}

// ---- misuse ---------------------------------------------------------------------------------------------------------

TEST(Cli, MisuseIsStatus2) {
  for (const char* arguments : {"bogus",
                                "models --bogus",
                                "models extra",
                                "route --model glm-5",
                                "route --batch 1",
                                "route --model no-such-model --batch 1",
                                "route --model ./no/such/folder --batch 1",
                                "route --model glm-5 --batch 0x3",
                                "route --model glm-5 --batch 1 --tp 3",
                                "route --model glm-5 --batch 1 --tp 0",
                                "route --model glm-5 --batch 1 --tp",
                                "route --model glm-5 --batch 1 --tp 2 --tp 2",
                                "route --model glm-5.3-flash --batch 1 --layer 0",
                                "route --model glm-5 --batch 1 --layer 78",
                                "route --model glm-5 --batch 1 --force flash",
                                "route --model glm-5 --batch 4k --workspace-limit 1KiB",
                                "route --model glm-5 --batch 1 --workspace-limit 1GB",
                                "route --model glm-5 --batch 1 --kv-cache-dtype fp4",
                                "route --model glm-5 --batch 1 --dtype float16",
                                "route --model glm-5 --batch 1 --device cuda",
                                "route --model glm-5 --batch 1 --threads 0",
                                "route --model glm-5 --batch 1 --selection drift:2",
                                "route --model glm-5 --batch 1 --selection magic",
                                "prefill --model glm-5 --batch 1 --selection recorded",
                                "prefill --model deepseek-v3 --batch 1 --selection local",
                                "route --model glm-5 --batch 1 --selection recorded",
                                "route --model deepseek-v3 --batch 1 --selection local",
                                "prefill --model glm-5 --batch 1 --check some",
                                "prefill --model glm-5 --batch 1 --prefill-chunk 0",
                                "prefill --model glm-5 --batch 1 --seed -1",
                                "verify --model glm-5"}) {
    expect_error(arguments, 2);
  }
  EXPECT_EQ(run("").status, 2);
}

TEST(Cli, UsageErrorsSayWhereToLook) {
  const auto says = [](const std::string& arguments, const std::string& text) {
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
  };
  says("route --model glm-5 --batch 1 --tp 2 --tp 2", "headrace: --tp: given twice");
  says("route --model glm-5 --batch 1 --bogus", "headrace route --help");
  says("route --model glm-5", "headrace route --help");
  says("prefill --model glm-5 --batch 1 extra", "headrace prefill --help");
  says("bogus", "unknown command \"bogus\"; the commands are models, route, prefill, verify, validate, bench, doctor");
  says("prefill --model deepseek-v3 --batch 1000x1000k", "--batch, --tp or --prefill-chunk");
}

/// The status of a run whose streams the shell redirects.
int status_of(const std::string& arguments_and_redirections) {
  // NOLINTNEXTLINE(cert-env33-c,concurrency-mt-unsafe): it is the shell's redirections that are tested
  const int status = std::system((std::string(HEADRACE_BINARY) + " " + arguments_and_redirections).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Cli, OutputThatCannotBeWrittenIsStatus2) {
  for (const char* command : {"models", "models --json", "--help", "--version"}) {
    for (const char* redirection : {" >/dev/full", " >&-"}) {
      SCOPED_TRACE(std::string(command) + redirection);
      const Result result = run(std::string(command) + redirection);
      EXPECT_EQ(result.status, 2);
      EXPECT_EQ(result.err, "headrace: standard output: cannot be written\n");
    }
  }
}

TEST(Cli, ErrorsKeepTheirStatusWhereStderrCannotBeWritten) {
  for (const char* redirection : {" 2>/dev/full", " 2>&-"}) {
    SCOPED_TRACE(redirection);
    EXPECT_EQ(status_of(std::string("bogus") + redirection), 2);
    EXPECT_EQ(
        status_of(std::string("route --model glm-5 --batch 4k --force dense_mha --profile nominal") + redirection), 1);
    EXPECT_EQ(status_of(std::string("models >/dev/null") + redirection), 0);
    EXPECT_EQ(status_of(std::string("models >&-") + redirection), 2);
  }
}

TEST(Cli, BatchesBeyondMemoryAreRefusedAtOnce) {
  expect_error("prefill --model deepseek-v3 --batch 1000x1000k", 2);
  expect_error("prefill --model deepseek-v3 --batch 65536x0+2000000000", 2);
  expect_error("prefill --model glm-5 --batch 2000000000 --selection uniform", 2);
}

TEST(Cli, BadRecordingsAreStatus2) {
  const std::string verify = "verify --model " + recording("deepseek_v32");
  expect_error(verify + " --recording no_such_file", 2);
  expect_error(verify + " --recording " + recording("glm5_next") + "/recording.safetensors", 2);
  expect_error(verify + " --selection local", 2);
  expect_error(verify + " --layer 7", 2);
  const TemporaryFolder folder;
  const std::string bytes = read_file(recording("deepseek_v32") + "/recording.safetensors");
  write_file(folder.path() / "truncated", bytes.substr(0, bytes.size() - 1));
  expect_error(verify + " --recording " + (folder.path() / "truncated").string(), 2);
  write_file(folder.path() / "empty", "");
  expect_error(verify + " --recording " + (folder.path() / "empty").string(), 2);
}

TEST(Cli, BadModelFoldersAreStatus2) {
  const TemporaryFolder folder;
  const std::string model = folder.path().string();
  expect_error("route --batch 1 --model " + model, 2);
  write_file(folder.path() / "config.json", "{\"model_type\": \"llama\"}");
  expect_error("route --batch 1 --model " + model, 2);
  write_file(folder.path() / "config.json", "{");
  expect_error("route --batch 1 --model " + model, 2);
}

TEST(Cli, BrokenWeightsAreNotReplacedByRandomOnes) {
  for (const char* target : {"no_such_file", "model.safetensors"}) {
    const TemporaryFolder folder;
    copy_config("deepseek_v32", folder.path());
    fs::create_symlink(target, folder.path() / "model.safetensors");
    EXPECT_EQ(run("prefill --batch 4 --model " + folder.path().string()).status, 2) << target;
    EXPECT_EQ(run("route --batch 4 --model " + folder.path().string()).status, 0) << target;
  }
  const TemporaryFolder shards;
  copy_config("deepseek_v32", shards.path());
  write_file(shards.path() / "model-00001-of-00002.safetensors", "");
  EXPECT_EQ(run("prefill --batch 4 --model " + shards.path().string()).status, 2);
}

// ---- doctor, validate -----------------------------------------------------------------------------------------------

TEST(Cli, DoctorJsonHasItsSchema) {
  const Result result = run("doctor --json --profile nominal");
  ASSERT_EQ(result.status, 0) << result.err;
  const Json document = result.json();
  EXPECT_EQ(document.at("schema"), 1);
  for (const char* object : {"machine", "instruction_sets", "dependencies", "profile"}) {
    EXPECT_TRUE(document.at(object).is_object()) << object;
  }
  EXPECT_EQ(document.at("profile").at("measured on"), "nominal");
  ASSERT_EQ(document.at("paths").size(), 3U);
  EXPECT_EQ(document.at("paths").at(0).at("path"), "dense_mha");
  EXPECT_FALSE(document.at("paths").at(0).at("cache_formats").at("bfloat16").get<std::string>().empty());
}

/// Sets one entry of a recording's layers.0.topk_indices.
void set_index(std::string& recording, std::int64_t row, std::int64_t column, std::int32_t value) {
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, recording.data(), sizeof header_bytes);
  const Json tensor = Json::parse(recording.substr(8, header_bytes)).at("layers.0.topk_indices");
  const std::int64_t width = tensor.at("shape").at(1);
  const std::size_t entry = 8 + header_bytes + tensor.at("data_offsets").at(0).get<std::size_t>() +
                            static_cast<std::size_t>(row * width + column) * sizeof value;
  ASSERT_LE(entry + sizeof value, recording.size());
  std::memcpy(recording.data() + entry, &value, sizeof value);
}

TEST(Cli, ValidateCountsWhatIsWrongInARecording) {
  const std::string good = recording("deepseek_v32") + "/recording.safetensors";
  const Result clean = run("validate --json --recording " + good);
  EXPECT_EQ(clean.status, 0) << clean.err;
  EXPECT_EQ(clean.json().at("clean"), true);

  std::string bytes = read_file(good);
  ASSERT_NO_FATAL_FAILURE(set_index(bytes, 250, 0, 17));
  ASSERT_NO_FATAL_FAILURE(set_index(bytes, 250, 1, 17));
  ASSERT_NO_FATAL_FAILURE(set_index(bytes, 260, 0, 261));
  const TemporaryFolder folder;
  const fs::path bad = folder.path() / "recording.safetensors";
  write_file(bad, bytes);
  const Result result = run("validate --json --recording " + bad.string());
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_EQ(result.json().at("clean"), false);
  const Json selection = result.json().at("layers").at(0).at("selection");
  EXPECT_GE(selection.at("repeated"), 1);
  EXPECT_EQ(selection.at("future"), 1);
  EXPECT_EQ(run("validate --recording " + bad.string()).status, 1);
  expect_error("validate --recording no_such_file", 2);
}

// ---- verify ---------------------------------------------------------------------------------------------------------

void expect_path(const Json& path) {
  EXPECT_LE(path.at("rel_error"), path.at("tolerance"));
  EXPECT_LE(path.at("max_row_error"), path.at("max_row_tolerance"));
  EXPECT_LE(path.at("lse_error"), path.at("lse_tolerance"));
  EXPECT_GT(path.at("rel_error"), 0.0);
  EXPECT_EQ(path.at("pass"), true);
}

/// Both paths that can serve any prompt have errors to show; dense_mha is skipped with reasons and serves the covered
/// rows.
void expect_verified(const Json& document) {
  EXPECT_EQ(document.at("schema"), 1);
  EXPECT_EQ(document.at("pass"), true);
  ASSERT_FALSE(document.at("layers").empty());
  for (const Json& layer : document.at("layers")) {
    ASSERT_EQ(layer.at("paths").size(), 2U);
    EXPECT_EQ(layer.at("paths").at(0).at("path"), "masked_mha");
    EXPECT_EQ(layer.at("paths").at(1).at("path"), "topk_mqa");
    for (const Json& path : layer.at("paths")) {
      expect_path(path);
    }
    ASSERT_EQ(layer.at("skipped").size(), 1U);
    EXPECT_EQ(layer.at("skipped").at(0).at("path"), "dense_mha");
    EXPECT_FALSE(layer.at("skipped").at(0).at("unmet").empty());
    expect_path(layer.at("skipped").at(0).at("covered_prefix"));
  }
}

TEST(Cli, VerifyPassesOnEveryRecording) {
  for (const std::string& name : kRecordings) {
    SCOPED_TRACE(name);
    const Result result = run("verify --json --model " + recording(name));
    EXPECT_EQ(result.status, 0) << result.err;
    const Json document = result.json();
    expect_verified(document);
    for (const Json& layer : document.at("layers")) {
      EXPECT_TRUE(layer.at("selection_match").is_null());
      for (const Json& path : layer.at("paths")) {
        EXPECT_EQ(path.at("rows"), name == "glm_moe_dsa_8heads" ? 200 : 300);
        EXPECT_LE(path.at("rel_error"), 3e-6);
        EXPECT_LE(path.at("max_row_error"), 1e-5);
      }
    }
  }
}

TEST(Cli, VerifyPassesInChunksAndInBfloat16) {
  for (const char* options : {"--prefill-chunk 7", "--prefill-chunk 64 --dtype bfloat16", "--kv-cache-dtype fp8"}) {
    SCOPED_TRACE(options);
    const Result result = run("verify --json --model " + recording("glm5_next") + " " + options);
    EXPECT_EQ(result.status, 0) << result.err;
    expect_verified(result.json());
  }
}

TEST(Cli, VerifyMatchesSelectionsWithItsOwnIndexer) {
  for (const std::string& name : kRecordings) {
    SCOPED_TRACE(name);
    const Result result = run("verify --json --selection indexer --model " + recording(name));
    EXPECT_EQ(result.status, 0) << result.err;
    const Json document = result.json();
    expect_verified(document);
    const Json& layers = document.at("layers");
    EXPECT_EQ(layers.at(0).at("selection_match"), 1.0);
    EXPECT_TRUE(layers.at(0).at("ties").is_number_integer());
    for (const Json& layer : layers) {
      EXPECT_GE(layer.at("paths").at(0).at("rows"), 150);
    }
    if (name == "glm5_next") {
      ASSERT_EQ(layers.size(), 2U);
      EXPECT_TRUE(layers.at(1).at("selection_match").is_null());
      EXPECT_TRUE(layers.at(1).at("ties").is_null());
    }
  }
}

TEST(Cli, VerifyOfAForcedPath) {
  const std::string verify = "verify --json --model " + recording("glm_moe_dsa");
  const Result able = run(verify + " --force topk_mqa");
  EXPECT_EQ(able.status, 0);
  EXPECT_EQ(able.json().at("layers").at(0).at("paths").size(), 1U);
  const Result unable = run(verify + " --force dense_mha");
  EXPECT_EQ(unable.status, 1);
  EXPECT_EQ(unable.json().at("pass"), false);
  const Json layer = unable.json().at("layers").at(0);
  EXPECT_TRUE(layer.at("paths").empty());
  EXPECT_EQ(layer.at("cannot_run"), true);
  const Result plain = run("verify --model " + recording("glm_moe_dsa") + " --force dense_mha");
  EXPECT_EQ(plain.status, 1);
  EXPECT_NE(plain.out.find("layer 0: cannot run\n"), std::string::npos) << plain.out;
  EXPECT_EQ(plain.out.find("FAIL"), std::string::npos) << plain.out;
}

TEST(Cli, VerifyKeepsItsDefaultsWhereverJsonStands) {
  const std::string verify = "verify --layer 0 --model " + recording("glm5_next");
  const Result before = run("--json " + verify);
  const Result after = run(verify + " --json");
  EXPECT_EQ(before.status, 0);
  EXPECT_EQ(before.json().at("dtype"), "float32");
  EXPECT_EQ(before.json().at("selection"), "recorded");
  EXPECT_EQ(before.out, after.out);
}

TEST(Cli, VerifyTellsWhatASelectionMatchHasToBe) {
  const std::string verify =
      "verify --selection indexer --dtype bfloat16 --layer 0 --model " + recording("deepseek_v32");
  const Json layer = run(verify + " --json").json().at("layers").at(0);
  EXPECT_EQ(layer.at("selection_match_required"), 0.95);
  const Json& path = layer.at("paths").at(0);
  EXPECT_LT(path.at("rows"), path.at("rows_run"));
  const Result plain = run(verify);
  EXPECT_NE(plain.out.find("at least 0.95 to pass"), std::string::npos) << plain.out;
  EXPECT_NE(plain.out.find(" " + path.at("rows").dump() + "/300 "), std::string::npos) << plain.out;
  const bool few = 2 * path.at("rows").get<int>() < path.at("rows_run").get<int>();
  EXPECT_EQ(plain.out.find("more than half") != std::string::npos, few) << plain.out;
}

TEST(Cli, VerifyNeedsAWorkspaceForEveryPath) {
  const Result result = run("verify --workspace-limit 1KiB --model " + recording("glm5_next"));
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("headrace: --workspace-limit: dense_mha cannot run: it needs at least"), std::string::npos)
      << result.err;
}

TEST(Cli, VerifyOfAPresetSaysThatItHasNoWeights) {
  const Result result = run("verify --model glm-5");
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("the preset \"glm-5\", which has no weights"), std::string::npos) << result.err;
}

TEST(Cli, VerifyNamesARecordingAndTheModelItDoesNotFit) {
  const std::string file = recording("glm5_next") + "/recording.safetensors";
  const Result result = run("verify --model " + recording("deepseek_v32") + " --recording " + file);
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find(file), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(recording("deepseek_v32")), std::string::npos) << result.err;
}

TEST(Cli, VerifyFailsOnAWrongEpsilon) {
  const TemporaryFolder folder;
  copy_model("glm5_next", folder.path(), [](Json& config) { config["text_config"]["rms_norm_eps"] = 1e-3; });
  const Result result = run("verify --json --model " + folder.path().string());
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_EQ(result.json().at("pass"), false);
  EXPECT_GT(result.json().at("layers").at(0).at("paths").at(0).at("rel_error"), 3e-6);
}

TEST(Cli, VerifyFailsOnAWrongRopePairing) {
  const TemporaryFolder folder;
  copy_model("deepseek_v32", folder.path(), [](Json& config) { config["indexer_rope_interleave"] = true; });
  const std::string verify = "verify --json --model " + folder.path().string();
  const Result result = run(verify + " --selection indexer");
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_LT(result.json().at("layers").at(0).at("selection_match"), 0.99);
  // The recorded selection does not depend on it.
  EXPECT_EQ(run(verify).status, 0);
}

TEST(Cli, VerifyFailsOnAnotherModelsRecording) {
  const Result result = run("verify --json --model " + recording("glm5_next") + " --recording " +
                            recording("deepseek_v32") + "/recording.safetensors");
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_EQ(result.json().at("pass"), false);
}

// ---- prefill --------------------------------------------------------------------------------------------------------

void expect_prefilled(const std::string& arguments, std::int64_t tokens) {
  SCOPED_TRACE(arguments);
  const Result result = run("prefill --json " + arguments);
  ASSERT_EQ(result.status, 0) << result.err << result.out;
  const Json document = result.json();
  EXPECT_EQ(document.at("schema"), 1);
  EXPECT_EQ(document.at("check").at("pass"), true);
  EXPECT_EQ(document.at("check").at("rows"), tokens);
  EXPECT_EQ(document.at("tokens"), tokens);
  std::int64_t by_path = 0;
  for (const Json& n : document.at("tokens_by_path")) {
    by_path += n.get<std::int64_t>();
  }
  EXPECT_EQ(by_path, tokens);
  double total = 0.0;
  for (const char* stage : {"plan", "project", "append", "select", "attend", "output"}) {
    total += document.at("stages_ms").at(stage).get<double>();
  }
  EXPECT_NEAR(document.at("total_ms").get<double>(), total, 1e-6 * total);
  EXPECT_GT(document.at("peak_memory_bytes"), 0);
}

TEST(Cli, PrefillPassesItsCheck) {
  const TemporaryFolder folder;
  copy_config("glm5_next", folder.path());
  const std::string batch = " --batch 100,2x10+69,1+100,0,0+5 --check all ";
  const std::string random = "--model " + folder.path().string() + batch;
  for (const char* options :
       {"", "--dtype float32", "--prefill-chunk 7", "--force masked_mha", "--force topk_mqa --dtype float32",
        "--layer 1 --prefill-chunk 33", "--selection drift:0.9 --prefill-chunk 13", "--selection pooled:4:0.9",
        "--selection uniform", "--selection local", "--kv-cache-dtype fp8", "--kv-cache-dtype fp8_ds_mla --threads 1",
        "--tp 2 --seed 7 --workspace-limit 16MiB"}) {
    expect_prefilled(random + options, 121);
  }
  expect_prefilled("--model " + recording("glm_moe_dsa") + batch, 121);
}

TEST(Cli, PrefillOfNothing) {
  const TemporaryFolder folder;
  copy_config("deepseek_v32", folder.path());
  for (const char* batch : {"0", "0+70"}) {
    expect_prefilled("--check --model " + folder.path().string() + " --batch " + batch, 0);
  }
  const Result plain = run("prefill --check --batch 0 --model " + folder.path().string());
  EXPECT_NE(plain.out.find("no rows to compare"), std::string::npos) << plain.out;
  EXPECT_EQ(plain.out.find("\ncontext "), std::string::npos) << plain.out;
}

TEST(Cli, PrefillForPeople) {
  const TemporaryFolder folder;
  copy_config("deepseek_v32", folder.path());
  const Result result = run("prefill --check --batch 40,1+200 --model " + folder.path().string());
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* text : {"random, seed 0", "dense_mha", "attend", "tokens/s", "peak", "check     pass"}) {
    EXPECT_NE(result.out.find(text), std::string::npos) << text << "\n" << result.out;
  }
  EXPECT_EQ(result.err, "");
}

TEST(Cli, PrefillAtATrueShape) { expect_prefilled("--model glm-5.3-flash --tp 8 --batch 5,2+9 --check", 7); }

}  // namespace
}  // namespace headrace
