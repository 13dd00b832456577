//! Digests of the data that ranks read: files of tensors, and weights that came with a program.
//!
//! A digest is SHA-256 over the SHA-256 of fixed pieces, which are hashed on all cores. Files are read by position, not
//! through a mapping, so that a file that another process shortens gives an error.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use symmc_control::TermContent;
use symmc_ir::Tensor;
use symmc_support::{Backing, MappedFile, parallel};

use crate::weights::Weights;

/// The bytes of one piece.
const PIECE: usize = 8 << 20;

/// A file of tensors.
pub(crate) struct FileContent(pub Arc<MappedFile>);

impl TermContent for FileContent {
    fn identity(&self) -> io::Result<String> {
        self.0.identity().map_or_else(|| self.digest(), Ok)
    }

    fn digest(&self) -> io::Result<String> {
        let mut hash = Sha256::new();
        hash_range(&mut hash, &*self.0, 0, self.0.bytes().len())?;
        Ok(format_digest(hash))
    }
}

/// The weights of a program's files.
pub(crate) struct WeightContent(pub Weights);

impl TermContent for WeightContent {
    /// The identities of the files and the range of each tensor, if files hold all data. Otherwise the digest.
    fn identity(&self) -> io::Result<String> {
        let mut files: BTreeMap<String, ()> = BTreeMap::new();
        let mut hash = Sha256::new();
        for (name, tensor) in self.all_tensors() {
            let Some((file, slice)) = tensor.backing_slice().and_then(|p| Some((p.backing().identity()?, p)))
            else {
                return self.digest();
            };
            hash_tensor_header(&mut hash, name, tensor);
            hash.update(format!("{file} {:?}", slice.range()));
            files.insert(file, ());
        }
        let files: Vec<String> = files.into_keys().collect();
        Ok(format!("{} of {}", format_digest(hash), files.join("; ")))
    }

    fn digest(&self) -> io::Result<String> {
        let mut hash = Sha256::new();
        for (name, tensor) in self.all_tensors() {
            hash_tensor_header(&mut hash, name, tensor);
            match tensor.backing_slice() {
                Some(slice) => {
                    hash_range(&mut hash, &**slice.backing(), slice.range().start, slice.range().len())?
                }
                None => hash_range(&mut hash, &SliceBacking(tensor.data()), 0, tensor.data().len())?,
            }
        }
        Ok(format_digest(hash))
    }
}

impl WeightContent {
    fn all_tensors(&self) -> impl Iterator<Item = (&String, &Arc<Tensor>)> {
        self.0.ranks.iter().flatten()
    }
}

/// Hashes the name and the type of a tensor.
fn hash_tensor_header(hash: &mut Sha256, name: &str, tensor: &Tensor) {
    hash.update(format!("{}:{name} {}{:?} ", name.len(), tensor.dtype(), tensor.shape()));
}

/// Bytes in memory, as a backing.
struct SliceBacking<'a>(&'a [u8]);

impl Backing for SliceBacking<'_> {
    fn bytes(&self) -> &[u8] {
        self.0
    }
}

/// Hashes `len` bytes from `start`.
fn hash_range(hash: &mut Sha256, source: &dyn Backing, start: usize, len: usize) -> io::Result<()> {
    let pieces: Vec<usize> = (0..len.div_ceil(PIECE)).collect();
    let digest = |piece: usize| {
        let from = piece * PIECE;
        let mut bytes = vec![0; PIECE.min(len - from)];
        source.read(start + from, &mut bytes)?;
        Ok(Sha256::digest(&bytes))
    };
    hash.update((len as u64).to_le_bytes());
    for digest in parallel::map(pieces, len, digest) {
        let digest: io::Result<_> = digest;
        hash.update(digest?);
    }
    Ok(())
}

fn format_digest(hash: Sha256) -> String {
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
