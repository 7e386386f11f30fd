<?php

namespace App\Models;

use Illuminate\Database\Eloquent\Model;

class Invoice extends Model
{
    public $incrementing = false;

    protected $connection = 'pgsql';

    protected $table = 'billing_invoices';

    protected $primaryKey = 'number';

    protected $keyType = 'string';
}
