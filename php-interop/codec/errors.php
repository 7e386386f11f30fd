<?php

/**
 * `php errors.php`: bytes that unserialize() refuses, each tried.
 *
 * `needs_class` marks lines that a reader without the PHP class cannot refuse.
 */

require __DIR__ . '/classes.php';
require __DIR__ . '/lines.php';

const TOKENS = [
    'empty' => ['', 'nothing'],
    'hello' => ['hello', 'not a token'],
    'json' => ['{"a":1}', 'JSON'],
    'space-before' => [' i:5;', 'space before the token'],
    'unknown-token' => ['x:1;', 'unknown token'],
    'l-token' => ['l:1;', 'no such token'],
    'U-token' => ['U:1:"a";', 'no such token'],
    'lower-null' => ['n;', 'tokens are case-sensitive'],
    'upper-array' => ['A:0:{}', 'tokens are case-sensitive'],
    'lower-object' => ['o:3:"Emp":0:{}', 'tokens are case-sensitive'],
    'upper-int' => ['I:5;', 'tokens are case-sensitive'],
    'null-colon' => ['N:;', 'null has no colon'],
    'null-open' => ['N', 'missing semicolon'],
    'token-alone' => ['i', 'cut off after the token'],
    'token-colon' => ['i:', 'cut off after the colon'],
    'brace-alone' => ['}', 'not a value'],
];

const SCALARS = [
    'bool-2' => ['b:2;', 'bool is 0 or 1'],
    'bool-true' => ['b:true;', 'bool is 0 or 1'],
    'bool-00' => ['b:00;', 'one digit'],
    'bool-none' => ['b:;', 'no digit'],
    'bool-sign' => ['b:-1;', 'sign'],
    'bool-open' => ['b:1', 'missing semicolon'],
    'int-none' => ['i:;', 'no digits'],
    'int-space' => ['i: 5;', 'space'],
    'int-space-after' => ['i:5 ;', 'space'],
    'int-point' => ['i:5.0;', 'point'],
    'int-hex' => ['i:0x5;', 'hexadecimal'],
    'int-open' => ['i:5', 'missing semicolon'],
    'int-sign-only' => ['i:-;', 'sign without digits'],
    'int-plus-only' => ['i:+;', 'sign without digits'],
    'int-two-signs' => ['i:--1;', 'two signs'],
    'int-exponent' => ['i:1e3;', 'exponent'],
    'int-no-colon' => ['i5;', 'missing colon'],
    'float-none' => ['d:;', 'no digits'],
    'float-point' => ['d:.;', 'a point without digits'],
    'float-comma' => ['d:1,5;', 'comma'],
    'float-sign-only' => ['d:+;', 'sign without digits'],
    'float-point-exp' => ['d:.e1;', 'a point without digits'],
    'float-exp-only' => ['d:e1;', 'exponent without digits before'],
    'float-exp-none' => ['d:1e;', 'exponent without digits'],
    'float-exp-sign' => ['d:1e+;', 'exponent without digits'],
    'float-exp-point' => ['d:1e1.5;', 'point in the exponent'],
    'float-two-points' => ['d:1.2.3;', 'two points'],
    'float-hex' => ['d:0x1;', 'hexadecimal'],
    'float-space' => ['d: 1;', 'space'],
    'float-space-after' => ['d:1 ;', 'space'],
    'float-open' => ['d:1.5', 'missing semicolon'],
    'nan-lower' => ['d:nan;', 'case'],
    'nan-negative' => ['d:-NAN;', 'NAN has no sign'],
    'inf-plus' => ['d:+INF;', 'INF takes no plus'],
    'inf-lower' => ['d:inf;', 'case'],
    'inf-long' => ['d:INFINITY;', 'only INF'],
];

const STRINGS = [
    'string-short' => ['s:2:"abc";', 'length too small'],
    'string-long' => ['s:4:"abc";', 'length too large by one'],
    'string-long-2' => ['s:5:"abc";', 'length too large by two'],
    'string-beyond' => ['s:6:"abc";', 'length beyond the end'],
    'string-cut' => ['s:3:"a', 'cut off'],
    'string-open' => ['s:3:"abc"', 'missing semicolon'],
    'string-no-quote' => ['s:3:"abc;', 'missing quote'],
    'string-no-quotes' => ['s:3:abc;', 'missing quotes'],
    'string-single' => ["s:3:'abc';", 'single quotes'],
    'string-colon-end' => ['s:3:"abc":', 'colon for semicolon'],
    'string-plus' => ['s:+3:"abc";', 'sign in a length'],
    'string-minus' => ['s:-3:"abc";', 'sign in a length'],
    'string-no-length' => ['s::"abc";', 'no length'],
    'string-space' => ['s: 3:"abc";', 'space'],
    'string-chars' => ["s:1:\"\u{e9}\";", 'length in characters'],
    'string-empty-short' => ['s:0:"a";', 'length too small'],
    'string-huge' => ['s:99999999999:"a";', 'hostile length'],
    'string-huge-64' => ['s:9223372036854775807:"a";', 'hostile length'],
    'string-huge-u64' => ['s:18446744073709551615:"a";', 'hostile length'],
    'string-overflow' => ['s:9999999999999999999999:"a";', 'length beyond 64 bits'],
    'S-short' => ['S:3:"a\6c";', 'half an escape'],
    'S-not-hex' => ['S:1:"\zz";', 'not hexadecimal'],
    'S-raw-length' => ['S:4:"a\62c";', 'the length counts decoded bytes'],
    'S-cut' => ['S:1:"\6', 'cut off in an escape'],
    'S-open' => ['S:1:"a"', 'missing semicolon'],
    'S-huge' => ['S:99999999999:"a";', 'hostile length'],
];

const ARRAYS = [
    'array-big' => ['a:2:{i:0;i:1;}', 'count too large'],
    'array-big-5' => ['a:5:{i:0;i:1;}', 'count too large for the bytes left'],
    'array-small' => ['a:1:{i:0;i:1;i:1;i:2;}', 'count too small'],
    'array-zero-small' => ['a:0:{i:0;i:1;}', 'count too small'],
    'array-cut' => ['a:1:{i:0;i:1;', 'cut off'],
    'array-cut-key' => ['a:1:{i:0;', 'cut off after the key'],
    'array-no-value' => ['a:1:{i:0;}', 'key without a value'],
    'array-space' => ['a:1:{ i:0;i:1;}', 'space'],
    'array-comma' => ['a:2:{i:0;i:1;,i:1;i:2;}', 'comma'],
    'array-no-colon' => ['a:1{i:0;i:1;}', 'missing colon'],
    'array-brackets' => ['a:1:[i:0;i:1;]', 'brackets'],
    'array-wrong-end' => ['a:1:{i:0;i:1;]', 'bracket for brace'],
    'array-no-count' => ['a::{}', 'no count'],
    'array-minus' => ['a:-1:{}', 'sign in a count'],
    'array-plus' => ['a:+0:{}', 'sign in a count'],
    'array-huge' => ['a:2147483647:{}', 'hostile count'],
    'array-huge-32' => ['a:4294967295:{}', 'hostile count'],
    'array-huge-64' => ['a:9223372036854775807:{}', 'hostile count'],
    'array-overflow' => ['a:9999999999999999999999:{}', 'count beyond 64 bits'],
    'array-wrap' => ['a:18446744073709551616:{}', 'count that wraps to zero'],
    'array-huge-nested' => ['a:1:{i:0;a:2147483647:{i:0;i:1;}}', 'hostile count inside'],
    'key-bool' => ['a:1:{b:1;i:1;}', 'bool key'],
    'key-null' => ['a:1:{N;i:1;}', 'null key'],
    'key-float' => ['a:1:{d:1;i:1;}', 'float key'],
    'key-array' => ['a:1:{a:0:{}i:1;}', 'array key'],
    'key-object' => ['a:1:{O:3:"Emp":0:{}i:1;}', 'object key'],
    'key-enum' => ['a:1:{E:11:"Suit:Hearts";i:1;}', 'enum key'],
    'key-r' => ['a:2:{i:0;O:3:"Emp":0:{}r:2;i:1;}', 'object reference as key'],
    'key-R' => ['a:2:{i:0;i:1;R:2;i:1;}', 'reference as key'],
    'key-no-semicolon' => ['a:1:{i:5i:1;}', 'missing semicolon after the key'],
    'key-string-no-semicolon' => ['a:1:{s:1:"a"i:1;}', 'missing semicolon after the key'],
    'key-string-colon' => ['a:1:{s:1:"a":i:1;}', 'colon after the key'],
    'value-no-semicolon' => ['a:1:{i:5;i:1}', 'missing semicolon after the value'],
    'array-semicolon' => ['a:2:{i:0;a:0:{};i:1;i:2;}', 'semicolon after a nested array'],
];

const OBJECTS = [
    'object-big' => ['O:3:"Emp":1:{}', 'count too large'],
    'object-small' => ['O:8:"stdClass":0:{s:1:"a";i:1;}', 'count too small'],
    'object-cut' => ['O:3:"Emp":0:{', 'cut off'],
    'object-cut-property' => ['O:8:"stdClass":1:{s:1:"a";', 'cut off after the name'],
    'object-minus' => ['O:3:"Emp":-1:{}', 'negative count'],
    'object-huge' => ['O:3:"Emp":2147483647:{}', 'hostile count'],
    'object-overflow' => ['O:3:"Emp":9999999999999999999999:{}', 'count beyond 64 bits'],
    'object-no-colon' => ['O:3:"Emp":0{}', 'missing colon'],
    'object-no-quotes' => ['O:3:Emp:0:{}', 'missing quotes'],
    'object-no-body' => ['O:3:"Emp";', 'no body'],
    'object-semicolon' => ['a:2:{i:0;O:3:"Emp":0:{};i:1;i:2;}', 'semicolon after an object'],
    'class-short' => ['O:2:"Emp":0:{}', 'length of the name too small'],
    'class-long' => ['O:4:"Emp":0:{}', 'length of the name too large'],
    'class-huge' => ['O:99999999999:"Emp":0:{}', 'hostile length of the name'],
    'class-overflow' => ['O:9999999999999999999999:"Emp":0:{}', 'length beyond 64 bits'],
    'class-plus' => ['O:+3:"Emp":0:{}', 'sign in a length'],
    'class-minus' => ['O:-3:"Emp":0:{}', 'sign in a length'],
    'class-empty' => ['O:0:"":0:{}', 'empty class name'],
    'class-nul' => ["O:4:\"\0Emp\":0:{}", 'class name starts with NUL'],
    'class-nul-inside' => ["O:4:\"E\0mp\":0:{}", 'NUL in a class name'],
    'class-backslash' => ['O:4:"\Emp":0:{}', 'class name starts with a backslash'],
    'class-space' => ['O:3:"a b":0:{}', 'space in a class name'],
    'class-dash' => ['O:3:"a-b":0:{}', 'dash in a class name'],
    'class-colon' => ['O:3:"a:b":0:{}', 'colon in a class name'],
    'class-at' => ['O:3:"a@b":0:{}', 'at sign in a class name'],
    'class-del' => ["O:2:\"a\x7f\":0:{}", 'byte 7F in a class name'],
    'property-bool' => ['O:3:"Emp":1:{b:1;i:1;}', 'bool as property name'],
    'property-null' => ['O:3:"Emp":1:{N;i:1;}', 'null as property name'],
    'property-float' => ['O:3:"Emp":1:{d:1;i:1;}', 'float as property name'],
    'property-r' => ['O:8:"stdClass":1:{r:1;i:1;}', 'object reference as property name'],
    'custom-class-empty' => ['C:0:"":0:{}', 'empty class name'],
    'custom-class-backslash' => ['C:7:"\OldSer":2:{hi}', 'class name starts with a backslash'],
    'custom-class-nul' => ["C:7:\"\0OldSer\":2:{hi}", 'class name starts with NUL'],
    'custom-class-space' => ['C:3:"a b":0:{}', 'space in a class name'],
    'custom-long' => ['C:6:"OldSer":9:{hi}', 'length of the body too large'],
    'custom-long-1' => ['C:6:"OldSer":3:{hi}', 'length of the body takes the brace'],
    'custom-short' => ['C:6:"OldSer":1:{hi}', 'length of the body too small'],
    'custom-minus' => ['C:6:"OldSer":-2:{hi}', 'negative length'],
    'custom-huge' => ['C:6:"OldSer":99999999999:{hi}', 'hostile length'],
    'custom-overflow' => ['C:6:"OldSer":9999999999999999999999:{hi}', 'length beyond 64 bits'],
    'custom-cut' => ['C:6:"OldSer":2:{hi', 'cut off'],
    'custom-wrong-end' => ['C:6:"OldSer":2:{hi]', 'bracket for brace'],
    'enum-no-colon' => ['E:4:"Suit";', 'no colon'],
    'enum-two-colons' => ['E:13:"Suit:Hearts:X";', 'two colons'],
    'enum-no-case' => ['E:5:"Suit:";', 'no case'],
    'enum-no-class' => ['E:7:":Hearts";', 'no class'],
    'enum-empty' => ['E:0:"";', 'empty'],
    'enum-short' => ['E:10:"Suit:Hearts";', 'length too small'],
    'enum-long' => ['E:12:"Suit:Hearts";', 'length too large'],
    'enum-open' => ['E:11:"Suit:Hearts"', 'missing semicolon'],
    'enum-plus' => ['E:+11:"Suit:Hearts";', 'sign in a length'],
    'enum-space' => ['E:12:"Su it:Hearts";', 'space in a class name'],
    'enum-nul' => ["E:12:\"\0Suit:Hearts\";", 'class name starts with NUL'],
    'enum-huge' => ['E:99999999999:"Suit:Hearts";', 'hostile length'],
];

const REFERENCES = [
    'r-alone' => ['r:1;', 'object reference to its own slot'],
    'R-alone' => ['R:1;', 'reference before any value'],
    'r-0' => ['a:1:{i:0;r:0;}', 'slot 0'],
    'R-0' => ['a:1:{i:0;R:0;}', 'slot 0'],
    'r-self' => ['a:1:{i:0;r:2;}', 'its own slot'],
    'R-self' => ['a:1:{i:0;R:2;}', 'a slot not yet started'],
    'r-array' => ['a:1:{i:0;r:1;}', 'object reference to an open array'],
    'r-empty-array' => ['a:2:{i:0;a:0:{}i:1;r:2;}', 'object reference to an array'],
    'r-int' => ['a:2:{i:0;i:5;i:1;r:2;}', 'object reference to an int'],
    'r-string' => ['a:2:{i:0;s:1:"a";i:1;r:2;}', 'object reference to a string'],
    'r-null' => ['a:2:{i:0;N;i:1;r:2;}', 'object reference to null'],
    'r-float' => ['a:2:{i:0;d:1.5;i:1;r:2;}', 'object reference to a float'],
    'r-reference-int' => ['a:3:{i:0;i:5;i:1;R:2;i:2;r:2;}', 'object reference to a reference to an int'],
    'r-forward' => ['a:2:{i:0;r:3;i:1;O:3:"Emp":0:{}}', 'forward'],
    'R-forward' => ['a:2:{i:0;R:3;i:1;i:5;}', 'forward'],
    'r-beyond' => ['a:2:{i:0;O:3:"Emp":0:{}i:1;r:9;}', 'beyond the last slot'],
    'R-beyond' => ['a:2:{i:0;i:5;i:1;R:9;}', 'beyond the last slot'],
    'R-huge' => ['a:2:{i:0;i:5;i:1;R:9999999999999999999999;}', 'slot beyond 64 bits'],
    'r-huge' => ['a:2:{i:0;O:3:"Emp":0:{}i:1;r:9223372036854775807;}', 'hostile slot'],
    'R-plus' => ['a:2:{i:0;i:1;i:1;R:+2;}', 'sign'],
    'R-minus' => ['a:1:{i:0;R:-1;}', 'sign'],
    'r-plus' => ['a:2:{i:0;O:3:"Emp":0:{}i:1;r:+2;}', 'sign'],
    'r-none' => ['a:2:{i:0;O:3:"Emp":0:{}i:1;r:;}', 'no digits'],
    'R-open' => ['a:2:{i:0;i:1;i:1;R:2}', 'missing semicolon'],
    'r-key' => ['a:2:{s:1:"a";i:1;s:1:"b";r:3;}', 'its own slot: keys take none'],
    'r-overwritten' => ['a:3:{i:0;O:3:"Emp":0:{}i:0;i:1;i:1;r:3;}', 'a slot that an int took'],
];

const NEEDS_CLASS = [
    'enum-unknown-case' => ['E:9:"Suit:Nope";', 'unknown case'],
    'enum-unknown-class' => ['E:7:"Nope:Ab";', 'unknown class'],
    'enum-not-enum' => ['E:5:"Emp:A";', 'a class that is no enum'],
    'enum-constant' => ['E:9:"Suit:Wild";', 'a constant that is no case'],
    'enum-case-letters' => ['E:11:"Suit:hearts";', 'case names are case-sensitive'],
    'object-of-enum' => ['O:4:"Suit":0:{}', 'an enum as object'],
    'object-of-serializable' => ['O:6:"OldSer":0:{}', 'a Serializable class as object'],
    'object-of-closure' => ['O:7:"Closure":0:{}', 'closures cannot be read'],
    'typed-int-string' => ['O:5:"Typed":1:{s:1:"c";s:1:"3";}', 'string for int'],
    'typed-int-float' => ['O:5:"Typed":1:{s:1:"c";d:3;}', 'float for int'],
    'typed-int-null' => ['O:5:"Typed":1:{s:1:"c";N;}', 'null for int'],
    'typed-string-int' => ['O:5:"Typed":1:{s:1:"b";i:3;}', 'int for string'],
    'date-wrong' => ['O:8:"DateTime":0:{}', 'a DateTime without its values'],
];

/** One level more than unserialize() takes. */
const TOO_DEEP = [
    'depth-arrays' => ['prefix' => 'a:1:{i:0;', 'middle' => 'N;', 'suffix' => '}', 'times' => 4097],
    'depth-objects' => [
        'prefix' => 'O:8:"stdClass":1:{s:1:"a";', 'middle' => 'N;', 'suffix' => '}', 'times' => 4097,
    ],
    'depth-empty-object' => [
        'prefix' => 'O:8:"stdClass":1:{s:1:"a";', 'middle' => 'O:8:"stdClass":0:{}', 'suffix' => '}', 'times' => 4096,
    ],
    'depth-mixed' => [
        'prefix' => 'a:1:{i:0;O:8:"stdClass":1:{s:1:"a";', 'middle' => 'a:1:{i:0;N;}', 'suffix' => '}}',
        'times' => 2048,
    ],
    'depth-hostile' => ['prefix' => 'a:1:{i:0;', 'middle' => '', 'suffix' => '', 'times' => 1000000],
];

foreach (TOKENS + SCALARS + STRINGS + ARRAYS + OBJECTS + REFERENCES + NEEDS_CLASS as $id => [$php, $why]) {
    [$ok, $value] = attempt($php);
    if ($ok) {
        fail("$id is accepted: $php as " . serialize($value));
    }
    line(['id' => $id, 'php' => base64_encode($php), 'why' => $why] +
        (isset(NEEDS_CLASS[$id]) ? ['needs_class' => true] : []));
}
foreach (TOO_DEEP as $id => $repeat) {
    [$ok] = attempt(repeated($repeat));
    if ($ok) {
        fail("$id is accepted");
    }
    line(['id' => $id, 'repeat' => $repeat, 'why' => 'nested deeper than 4096']);
}
