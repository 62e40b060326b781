// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "io/safetensors.h"

namespace headrace::io {

/// The tensors of a Hugging Face checkpoint folder: model.safetensors, or else the shards that
/// model.safetensors.index.json lists. A shard is opened when the first of its tensors is asked for.
class CheckpointFolder {
 public:
  /// @throws Error when the folder holds neither, or the index is damaged
  explicit CheckpointFolder(std::filesystem::path folder);

  [[nodiscard]] bool contains(std::string_view name) const;
  /// Valid as long as this object lives.
  /// @param types  as for Safetensors::tensor
  /// @throws Error when there is no such tensor or its shard is missing or damaged
  [[nodiscard]] StoredTensor tensor(std::string_view name, std::string_view types);

 private:
  static constexpr std::string_view kSingleFile = "model.safetensors";

  const Safetensors& open(const std::string& file);
  void read_index(const std::filesystem::path& index);

  std::filesystem::path folder_;
  bool sharded_ = false;
  std::map<std::string, std::string, std::less<>> shard_of_;  // tensor -> file name, of a sharded checkpoint
  std::map<std::string, Safetensors> open_;                   // by file name
};

}  // namespace headrace::io
