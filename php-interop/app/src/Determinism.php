<?php

/**
 * With INTEROP_SEED set, everything that is random in a payload comes from a
 * seeded sequence, and with INTEROP_NOW (unix seconds) time stands still. This
 * is how a second capture gives the same bytes.
 *
 * Laravel 8 cannot be told how to make random strings. But a function that is
 * called without a leading backslash is looked up in the caller's namespace
 * first, so one defined there takes the place of PHP's own. That has to be done
 * before the caller is loaded, hence in a file of its own.
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

        /** Starts the sequence anew, so that one kind does not depend on the others. */
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
