// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint_folder.h"

#include <system_error>
#include <utility>

#include "headrace/error.h"
#include "io/json.h"
#include "io/mapped_file.h"

namespace headrace::io {
namespace {

// Shards lie in the folder itself; an index must not lead to any other file.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

// A link that leads nowhere is there: opening it says where it leads.
bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

// What a folder without a file that is to be opened holds instead.
std::string what_is_there(const std::filesystem::path& folder) {
  std::string first;
  std::error_code problem;
  for (std::filesystem::directory_iterator entry(folder, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(".safetensors") && name.starts_with("model") && (first.empty() || name < first)) {
      first = name;
    }
  }
  return first.empty() ? "neither" : "neither, but " + first + ", a shard without the index";
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::filesystem::path folder) : folder_(std::move(folder)) {
  if (is_there(folder_ / kSingleFile)) {
    open(std::string(kSingleFile));
    return;
  }
  const std::filesystem::path index = folder_ / "model.safetensors.index.json";
  if (!is_there(index)) {
    throw Error(folder_.string(), "a folder with model.safetensors or model.safetensors.index.json",
                what_is_there(folder_));
  }
  sharded_ = true;
  read_index(index);
}

void CheckpointFolder::read_index(const std::filesystem::path& index) {
  const MappedFile file(index);
  const Json json = parse_json(file.text(), index.string());
  const auto weight_map = json.is_object() ? json.find("weight_map") : json.end();
  if (weight_map == json.end() || !weight_map->is_object()) {
    throw Error(index.string() + ": weight_map", "an object from tensor to file name",
                weight_map == json.end() ? "nothing" : describe(*weight_map));
  }
  for (const auto& [name, shard] : weight_map->items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      throw Error(index.string() + ": weight_map." + name, "the name of a file in the same folder", describe(shard));
    }
    shard_of_.emplace(name, shard.get<std::string>());
  }
}

const Safetensors& CheckpointFolder::open(const std::string& file) {
  // Constructed in place: an entry appears only when the file opened.
  return open_.try_emplace(file, folder_ / file).first->second;
}

bool CheckpointFolder::contains(std::string_view name) const {
  return sharded_ ? shard_of_.find(name) != shard_of_.end() : open_.begin()->second.contains(name);
}

StoredTensor CheckpointFolder::tensor(std::string_view name, std::string_view types) {
  if (!sharded_) {
    return open_.begin()->second.tensor(name, types);
  }
  const auto shard = shard_of_.find(name);
  if (shard == shard_of_.end()) {
    throw Error(std::string(name), "a tensor of " + (folder_ / "model.safetensors.index.json").string(), "nothing");
  }
  return open(shard->second).tensor(name, types);
}

}  // namespace headrace::io
