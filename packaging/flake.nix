{
  description = "Network file system that needs nothing but SSH";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      each = f: nixpkgs.lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});
    in {
      packages = each (pkgs: {
        # The flake is in a directory of the sources: nix build 'git+file:.?dir=packaging'.
        default = pkgs.rustPlatform.buildRustPackage {
          pname = "sshoal";
          version = "0.1.0";
          src = ./..;
          cargoLock.lockFile = ../Cargo.lock;
          nativeBuildInputs = [ pkgs.makeWrapper ];
          # The tests need sshd, /dev/fuse and root.
          doCheck = false;
          buildPhase = ''
            patchShebangs scripts
            make build
          '';
          installPhase = ''
            make install PREFIX=$out SBINDIR=$out/sbin
          '';
          # fusermount3 is a wrapper with the set-user-ID bit outside of the store, found by PATH.
          postFixup = ''
            wrapProgram $out/bin/sshoal --suffix PATH : ${pkgs.lib.makeBinPath [ pkgs.openssh ]}
          '';
        };
      });
    };
}
