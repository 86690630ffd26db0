//! Any bytes as `/etc/ethers`: hosts with addresses of single stations, or an error of one line that names the bad one.

use std::path::Path;

use tsumuji_link::ether::Ethers;

/// The target.
pub fn ethers(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Ethers::parse(bytes, Path::new("ethers")) {
        Ok(ethers) => {
            for word in text.split_whitespace().take(100) {
                match ethers.resolve(word) {
                    Ok(mac) => assert!(mac.is_station()),
                    Err(error) => assert!(!error.to_string().contains('\n')),
                }
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
}
