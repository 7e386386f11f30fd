<?php

/**
 * `php accepted.php`: bytes that unserialize() takes but serialize() would not write, and what it writes for them.
 *
 * `needs_class` marks lines whose canonical bytes depend on the PHP class.
 */

require __DIR__ . '/classes.php';
require __DIR__ . '/document.php';
require __DIR__ . '/lines.php';

const DATE = 'O:8:"DateTime":3:{s:4:"date";s:26:"%s";s:13:"timezone_type";i:3;s:8:"timezone";s:12:"Europe/Paris";}';

const ACCEPTED = [
    'S' => 'S:3:"a\62c";',
    'S-upper' => 'S:1:"\4A";',
    'S-lower' => 'S:1:"\4a";',
    'S-nul' => 'S:2:"\00\ff";',
    'S-plain' => 'S:3:"abc";',
    'S-empty' => 'S:0:"";',
    'S-key' => 'a:1:{S:1:"\61";i:1;}',
    'S-intkey' => 'a:1:{S:1:"\37";i:1;}',
    'S-property' => 'O:8:"stdClass":1:{S:1:"\61";i:1;}',
    'iplus' => 'i:+5;',
    'ilead' => 'i:007;',
    'i-0' => 'i:-0;',
    'ineglead' => 'i:-007;',
    'iover' => 'i:9223372036854775808;',
    'iunder' => 'i:-9223372036854775809;',
    'ihuge' => 'i:99999999999999999999999;',
    'dint' => 'd:5;',
    'ddot' => 'd:.5;',
    'ddot2' => 'd:5.;',
    'dexp' => 'd:1E3;',
    'dexp-lower' => 'd:1e5;',
    'dexp-plus' => 'd:1.5e+3;',
    'dexp-minus' => 'd:15E-1;',
    'dexp-lead' => 'd:1e007;',
    'ddot-exp' => 'd:+.5e-3;',
    'dexp-dot' => 'd:5.e2;',
    'dplus' => 'd:+1.5;',
    'd17' => 'd:0.10000000000000001;',
    'dzero' => 'd:0.0;',
    'd-zero' => 'd:-0.0;',
    'dlead' => 'd:007.5;',
    'dover' => 'd:1e999;',
    'dunder' => 'd:-1e999;',
    'dtiny' => 'd:1e-999;',
    'dlong' => 'd:3.14159265358979323846264338327950288419716939937510;',
    'dhalf' => 'd:9007199254740993;',
    'd16digits' => 'd:1.0E+16;',
    'slead' => 's:03:"abc";',
    'alead' => 'a:00:{}',
    'olead' => 'O:03:"Emp":0:{}',
    'elead' => 'E:011:"Suit:Hearts";',
    'ocount-plus' => 'O:3:"Emp":+0:{}',
    'ocount-minus' => 'O:3:"Emp":-0:{}',
    'clength-plus' => 'C:6:"OldSer":+2:{hi}',
    'clength-lead' => 'C:6:"OldSer":02:{hi}',
    'rlead' => 'a:2:{i:0;i:1;i:1;R:02;}',
    'key-numeric' => 'a:1:{s:1:"7";i:1;}',
    'key-negative' => 'a:1:{s:2:"-7";i:1;}',
    'key-max' => 'a:1:{s:19:"9223372036854775807";i:1;}',
    'key-min' => 'a:1:{s:20:"-9223372036854775808";i:1;}',
    'key-plus' => 'a:1:{i:+5;i:1;}',
    'key-over' => 'a:1:{i:9999999999999999999999;i:1;}',
    'key-twice' => 'a:3:{s:1:"a";i:1;s:1:"b";i:2;s:1:"a";i:3;}',
    'key-twice-int' => 'a:2:{i:7;i:1;s:1:"7";i:2;}',
    'slot-key-twice' => 'a:3:{i:0;s:1:"a";i:0;s:1:"k";i:1;R:3;}',
    'property-int' => 'O:8:"stdClass":1:{i:7;i:1;}',
    'property-twice' => 'O:8:"stdClass":2:{s:1:"a";i:1;s:1:"a";i:2;}',
    'property-nul' => "O:8:\"stdClass\":1:{s:3:\"\0AB\";i:1;}",
    'property-protected' => "O:8:\"stdClass\":1:{s:4:\"\0*\0a\";i:1;}",
    'R-self' => 'O:8:"stdClass":1:{s:1:"a";R:1;}',
    'R-slot-of-r' => 'a:3:{i:0;O:3:"Emp":0:{}i:1;r:2;i:2;R:3;}',
    'r-slot-of-r' => 'a:3:{i:0;O:3:"Emp":0:{}i:1;r:2;i:2;r:3;}',
    'r-slot-of-R' => 'a:3:{i:0;O:3:"Emp":0:{}i:1;R:2;i:2;r:2;}',
    'R-enum' => 'a:2:{i:0;E:11:"Suit:Hearts";i:1;R:2;}',
    'class-unknown' => 'O:7:"No\Such":2:{s:1:"a";i:1;' . "s:4:\"\0*\0b\";i:2;}",
    'class-digit' => 'O:2:"9a":0:{}',
    'class-high' => "O:3:\"a\u{e9}\":0:{}",
    'class-backslash-end' => 'O:2:"a\":0:{}',
];

const NEEDS_CLASS = [
    'NS-plain-names' => 'O:11:"App\Jobs\NS":3:{s:1:"p";i:5;s:1:"q";i:6;s:1:"r";i:7;}',
    'NS-defaults' => 'O:11:"App\Jobs\NS":1:{s:1:"p";i:5;}',
    'class-case' => 'O:3:"emp":0:{}',
    'enum-case' => 'E:11:"suit:Hearts";',
    'enum-backslash' => 'E:12:"\Suit:Hearts";',
    'C-not-serializable' => 'C:3:"Emp":2:{hi}',
    'C-unknown' => 'C:3:"Nop":2:{hi}',
];

/** The deepest nesting that unserialize() takes. */
const DEEPEST = [
    'depth-arrays' => ['prefix' => 'a:1:{i:0;', 'middle' => 'N;', 'suffix' => '}', 'times' => 4096],
    'depth-empty-array' => ['prefix' => 'a:1:{i:0;', 'middle' => 'a:0:{}', 'suffix' => '}', 'times' => 4096],
    'depth-objects' => [
        'prefix' => 'O:8:"stdClass":1:{s:1:"a";', 'middle' => 'N;', 'suffix' => '}', 'times' => 4096,
    ],
    'depth-empty-object' => [
        'prefix' => 'O:8:"stdClass":1:{s:1:"a";', 'middle' => 'O:8:"stdClass":0:{}', 'suffix' => '}', 'times' => 4095,
    ],
];

$needs_class = NEEDS_CLASS + ['date-gap' => sprintf(DATE, '2024-03-31 02:30:00.000000')];
foreach (ACCEPTED + $needs_class as $id => $php) {
    [$ok, $value] = attempt($php);
    if (!$ok) {
        fail("$id is refused: $php: $value");
    }
    $canonical = serialize($value);
    $line = [
        'id' => $id,
        'php' => base64_encode($php),
        'canonical' => base64_encode($canonical),
        'json' => Document::of($value),
    ];
    line($line + (isset($needs_class[$id]) ? ['needs_class' => true] : []));
}
foreach (DEEPEST as $id => $repeat) {
    $php = repeated($repeat);
    [$ok, $value] = attempt($php);
    if (!$ok || serialize($value) !== $php) {
        fail("$id is refused: $value");
    }
    line(['id' => $id, 'repeat' => $repeat]);
}
