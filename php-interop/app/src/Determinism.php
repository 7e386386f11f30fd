<?php

/**
 * With INTEROP_SEED set, all random parts of a payload come from a
 * seeded sequence, and with INTEROP_NOW (unix seconds) time does not move. So
 * a second capture gives the same bytes.
 *
 * Laravel 8 has no setting for random strings. But PHP looks up a function that
 * is called without a leading backslash in the caller's namespace first,
 * so a function defined there replaces PHP's own. This has to happen
 * before the caller is loaded, so it is in a separate file.
 */

namespace App {
    final class Determinism
    {
        private static ?\Random\Randomizer $source = null;

        public static function seeded(): bool
        {
            return self::seed() !== null;
        }

        public static function bytes(int $length): string
        {
            return self::source()->getBytes($length);
        }

        public static function uuid(): string
        {
            $hex = bin2hex(self::bytes(16));
            $hex[12] = '4';
            $hex[16] = '89ab'[hexdec($hex[16]) & 3];

            return implode('-', sscanf($hex, '%8s%4s%4s%4s%12s'));
        }

        private static ?string $part = null;

        /** Restarts the sequence, so that one kind does not depend on the others. */
        public static function reseed(string $part): void
        {
            self::$part = $part;
            self::$source = null;
        }

        private static function seed(): ?string
        {
            $seed = getenv('INTEROP_SEED');

            return $seed === false || $seed === '' ? null : $seed;
        }

        private static function source(): \Random\Randomizer
        {
            return self::$source ??= new \Random\Randomizer(new \Random\Engine\Xoshiro256StarStar(
                hash('sha256', self::seed().'/'.self::$part, true)
            ));
        }
    }
}

namespace Illuminate\Support {
    if (\App\Determinism::seeded()) {
        function random_bytes(int $length): string
        {
            return \App\Determinism::bytes($length);
        }
    }
}

namespace Illuminate\Encryption {
    if (\App\Determinism::seeded()) {
        function random_bytes(int $length): string
        {
            return \App\Determinism::bytes($length);
        }
    }
}
